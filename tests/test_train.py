"""The loop: deterministic, in phases, and doing what it says."""

import math

import pytest
import torch

from softwarp import tune
from softwarp.losses import EuclideanSoftmaxLoss, WarpedSoftmaxLoss
from softwarp.recipe import Phase, parse_recipe
from softwarp.studies.demo import demo_recipes
from softwarp.train import start_phase, train

PHASE = {"epochs": 1, "learning_rate": 0.005, "proxy_learning_rate": 0.02}


def tiny(**changes):
    return parse_recipe(
        {
            "data": {"max_classes": 20},
            "model": {"embedding_size": 16},
            "loss": {"name": "warped_softmax", "settings": {"alpha": 4.0, "k1": 0.8, "k2": 1.2}},
            "batches": {"classes": 10, "samples": 4},
            "phases": [PHASE, {**PHASE, "warp": {"alpha": 2.0}}],
            **changes,
        }
    )


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    first, again = train(tiny(), tmp_path / "a"), train(tiny(), tmp_path / "b")
    assert first.result()["metrics"] == again.result()["metrics"]
    assert torch.equal(first.load_embeddings()[0], again.load_embeddings()[0])
    other = train(tiny(seed=1), tmp_path / "c")
    assert not torch.equal(first.load_embeddings()[0], other.load_embeddings()[0])


def test_a_run_leaves_recipe_history_checkpoint_and_result(tmp_path):
    run = train(tiny(), tmp_path)
    assert run.recipe() == tiny()
    assert [row["phase"] for row in run.history()] == [0, 1]
    assert all(math.isfinite(row["loss"]) and row["avg_dtp"] > 0 for row in run.history())
    state = run.load_checkpoint()
    assert state["epoch"] == 2
    assert state["loss"]["alpha"] == 2.0  # of the second phase
    assert run.result()["classes"] == {"train": 20, "evaluated": 20}
    assert len(run.result()["data_sha256"]) == 64
    assert {"recall@1", "map@r", "nmi", "avg_dtp", "r_precision", "precision@1"} <= set(
        run.result()["metrics"]
    )


def test_losses_with_the_same_seed_start_from_the_same_network_and_batches(tmp_path, monkeypatch):
    seen = []
    original = torch.nn.Module.__call__

    def spy(module, *inputs, **keywords):
        if isinstance(module, (WarpedSoftmaxLoss, EuclideanSoftmaxLoss)) and len(seen) % 2 == 0:
            seen.append((inputs[0].detach().clone(), inputs[1].clone()))
        return original(module, *inputs, **keywords)

    monkeypatch.setattr(torch.nn.Module, "__call__", spy)
    train(tiny(phases=[PHASE]), tmp_path / "a")
    seen.append(None)
    train(tiny(phases=[PHASE], loss={"name": "euclidean_softmax"}), tmp_path / "b")
    assert torch.equal(seen[0][0], seen[2][0])
    assert torch.equal(seen[0][1], seen[2][1])


def test_a_phase_sets_learning_rates_and_warp():
    loss = WarpedSoftmaxLoss(4, 2, alpha=3.0, k1=0.9, k2=1.1, delta=1.3)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": loss.parameters()}])
    phase = Phase(epochs=1, learning_rate=0.5, proxy_learning_rate=0.25, warp={"alpha": 1.0, "scale": 2.0})
    start_phase(phase, loss, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    assert (loss.alpha.item(), loss.scale, loss.delta) == (1.0, 2.0, 1.3)
    with pytest.raises(ValueError, match="only warped_softmax has a warp"):
        start_phase(phase, EuclideanSoftmaxLoss(4, 2), optimizer)


def test_gradients_are_clipped_by_value_on_the_model_only(tmp_path, monkeypatch):
    largest = {}
    original = torch.optim.Adam.step

    def spy(optimizer, *inputs, **keywords):
        for name, group in zip(("model", "proxies"), optimizer.param_groups, strict=True):
            size = max(p.grad.abs().max().item() for p in group["params"])
            largest[name] = max(size, largest.get(name, 0.0))
        return original(optimizer, *inputs, **keywords)

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    train(tiny(optimizer={"clip_value": 1e-6}, phases=[PHASE]), tmp_path)
    assert largest["model"] == pytest.approx(1e-6)
    assert largest["proxies"] > 1e-5


def test_a_search_goes_on_where_it_stopped_and_never_sees_test_classes(tmp_path):
    recipe = tiny(phases=[PHASE])
    first = tune.search(recipe, tmp_path, trials=1)
    both = tune.search(recipe, tmp_path, trials=2)
    assert len(both) == 2
    assert first[0] in both
    assert both[0]["value"] >= both[1]["value"]
    assert set(both[0]["settings"]) == {"learning_rate", "proxy_learning_rate", "alpha", "k1", "k2", "scale"}
    impossible = tiny(batches={"classes": 21, "samples": 1})
    with pytest.raises(ValueError, match=r"not one of 2 trials ended well; .* only 20 classes"):
        tune.search(impossible, tmp_path / "impossible", trials=2)
    with pytest.raises(ValueError, match="evaluates on validation classes"):
        tune.search(tiny(evaluation={"split": "test"}), tmp_path, trials=1)


@pytest.mark.slow
def test_distance_to_the_proxy_settles_near_alpha(tmp_path):
    """The claim of the paper's Fig. 7: during warped training AvgDTP goes to alpha and stays there."""
    recipe = demo_recipes()["warped_softmax"].model_dump()
    chosen = recipe["loss"]["settings"]["alpha"]
    for alpha in (chosen, 1.5 * chosen):
        recipe["loss"]["settings"]["alpha"] = alpha
        history = train(parse_recipe(recipe), tmp_path / str(alpha)).history()
        last = [row["avg_dtp"] for row in history[-4:]]
        assert last == pytest.approx([alpha] * 4, rel=0.1)
