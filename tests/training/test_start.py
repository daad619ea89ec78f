"""Where training starts: head and proxies from the images, rates in units, weights that remember it."""

import math
import signal

import pytest
import torch
from support.tiny_runs import PHASE, Steps, losses_of, outcome, tiny, two_processes

from softwarp.losses import LOSSES
from softwarp.models.embedder import Embedder
from softwarp.recipe.overrides import change_loss
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.run import Run
from softwarp.training.features import PER_CLASS, sampled_items
from softwarp.training.start import proxy_rate, start_run
from softwarp.training.train import StoppedError, train_recipe

NOTHING = {**PHASE, "epochs": 0}
MODEL = {"embedding_size": 16}
PCA = {**MODEL, "head_init": "pca"}


def with_loss(name, **settings):
    return {"name": name, "proxy_init": "means", "settings": settings}


def checkpoint_after_a_step(recipe, folder):
    """The state after one step at rates so small that nothing moves."""
    with pytest.raises(StoppedError):
        train_recipe(recipe, folder, on_event=Steps(1, lambda: signal.raise_signal(signal.SIGINT)))
    return Run(folder).load_checkpoint()[0]


STILL = {**PHASE, "learning_rate": 1e-30, "proxy_learning_rate": 1e-30}


def test_an_untrained_principal_head_has_the_metrics_of_the_frozen_features(tmp_path):
    """With a loss over cosines; a layer norm of features this small leaves them not quite of one length."""
    judged = {"phases": [NOTHING], "evaluation": {"baseline": True, "clustering": False}}
    wide = {"embedding_size": 512}
    runs = [
        train_recipe(
            tiny(loss={"name": "proxy_nca_pp"}, model=model, **judged), tmp_path / str(place)
        ).result()
        for place, model in enumerate((wide | {"head_init": "pca"}, wide))
    ]
    for metric in ("recall@1", "map@r"):
        assert runs[0].metrics[metric] == pytest.approx(runs[0].baseline[metric], abs=0.001)
    assert runs[1].metrics["map@r"] != pytest.approx(runs[1].baseline["map@r"], abs=0.001)


def test_an_untrained_principal_head_has_the_distances_of_the_frozen_features(tmp_path):
    job = started(tiny(model={"embedding_size": 600, "head_init": "pca"}, phases=[NOTHING]), tmp_path)
    images = job.source.queries.__getitems__([(item, 0) for item in range(0, 240, 9)]).images
    embeddings, features = job.model(images).double(), job.model.features(images).double()
    torch.testing.assert_close(
        torch.cdist(embeddings, embeddings), torch.cdist(features, features), rtol=1e-4, atol=1e-4
    )
    training = job.model(job.source.plain.__getitems__([(item, 0) for item in range(240)]).images)
    assert training.mean(0).abs().max() < 1e-4 < training.abs().max()


@pytest.mark.parametrize("name", ["warped_softmax", "proxy_nca_pp", "cross_entropy", "hierarchical_proxies"])
def test_proxies_start_at_class_means(name, tmp_path):
    state = checkpoint_after_a_step(tiny(loss=with_loss(name), phases=[STILL]), tmp_path)
    vectors = state["loss"][str(LOSSES[name].class_vectors)]
    folder = tmp_path / "embedded"
    recipe = tiny(loss=with_loss(name), phases=[NOTHING])
    job = started(recipe, folder)
    embeddings = torch.cat([job.model(job.source.plain.__getitems__([(i, 0)]).images) for i in range(12)])
    if job.loss.distance == "cosine":
        embeddings = torch.nn.functional.normalize(embeddings)
    mean = embeddings.mean(0)
    if job.loss.distance == "cosine":
        mean = mean / mean.norm()
    assert job.source.labels[:13].tolist() == [0] * 12 + [1]
    torch.testing.assert_close(vectors[0], mean, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_gap_from_class_means_is_believed_if_the_network_is_pretrained(sharded, tmp_path):
    loss = with_loss("warped_softmax", scale="auto", alpha="auto") | {"sharded": sharded}
    recipe = tiny(loss=loss, phases=[NOTHING])
    job = started(recipe, tmp_path / "untrained")
    lengths = (job.loss.loss if sharded else job.loss).lengths
    assert not lengths.placed
    job.recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"pretrained": True})})
    start_run(job)
    assert lengths.placed


def started(recipe, folder):
    """The job of a run as it starts, its model in evaluation mode and without gradients."""
    jobs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softwarp.training.train.work_through", lambda job, _: jobs.append(job) or ())
        train_recipe(recipe, folder)
    jobs[0].model.eval().requires_grad_(False)
    return jobs[0]


def test_means_are_refused_where_a_class_has_no_vector_or_several(tmp_path):
    for name, found in (("triplet", "none"), ("soft_triple", r"\[20, \d+, 16\]")):
        recipe = tiny(loss=with_loss(name), phases=[NOTHING])
        with pytest.raises(ValueError, match=f"proxy_init means.*{name} has {found}"):
            train_recipe(recipe, tmp_path / name)


def test_a_moving_average_starts_where_the_model_does(tmp_path):
    settings = {"evaluation": {"clustering": False}, "phases": [NOTHING], "model": PCA}
    plain = train_recipe(tiny(**settings), tmp_path / "plain").load_model()
    averaged = train_recipe(tiny(**settings, optimizer={"average": 0.5}), tmp_path / "averaged").load_model()
    assert all(torch.equal(plain[name], averaged[name]) for name in plain)


def test_the_sample_has_every_class_and_no_more_of_one_than_allowed():
    labels = torch.cat([torch.zeros(100), torch.ones(3), torch.full((50,), 2.0)]).long()
    items = sampled_items(labels, seed=0)
    assert labels[items].bincount().tolist() == [PER_CLASS, 3, PER_CLASS]
    assert items.tolist() == sorted(set(items.tolist()))
    assert sampled_items(labels, seed=0).tolist() == items.tolist() != sampled_items(labels, seed=1).tolist()


TRAVEL = {key: value for key, value in PHASE.items() if key != "proxy_learning_rate"} | {"proxy_travel": 0.5}


def test_proxies_travel_by_the_reach_of_the_embeddings(tmp_path):
    """With Adam at full length; six steps per epoch count as 32: rate x sqrt(16) x 32 is half the reach."""
    recipe = tiny(phases=[TRAVEL])
    job = started(recipe, tmp_path / "start")
    images = job.source.plain.__getitems__([(item, 0) for item in range(240)]).images
    embeddings = job.model(images)
    centre = job.loss.proxies.detach().mean(0)
    reach = (embeddings - centre).square().sum(1).mean().sqrt().item()
    state = checkpoint_after_a_step(recipe, tmp_path / "run")
    rate = 0.5 * reach / (4 * 32)
    assert state["state"]["proxy_rate"] == pytest.approx(rate, rel=1e-4)
    assert state["optimizer"]["param_groups"][2]["lr"] == pytest.approx(rate, rel=1e-4)
    moved = (state["loss"]["proxies"] - job.loss.proxies.detach()).norm(dim=1)
    assert moved.max().item() == pytest.approx(rate * 4, rel=0.01)  # the first step has full length


def test_a_long_epoch_divides_the_travel_over_its_steps(tmp_path):
    short = tiny(phases=[TRAVEL])
    long = tiny(phases=[TRAVEL], batches={"classes": 2, "samples": 2})  # 60 steps
    rates = [
        proxy_rate(started(recipe, tmp_path / str(place)), recipe.phases[0])
        for place, recipe in enumerate((short, long))
    ]
    assert rates[0] / rates[1] == pytest.approx(60 / 32, rel=1e-4)


def test_momentum_of_rmsprop_is_part_of_the_travel(tmp_path):
    """Its steps add up to rate / (1 - momentum): after many in one direction, proxies have moved as far."""
    rates = {}
    for momentum in (0.0, 0.9):
        recipe = tiny(phases=[TRAVEL], optimizer={"name": "rmsprop", "momentum": momentum})
        rates[momentum] = proxy_rate(started(recipe, tmp_path / str(momentum)), recipe.phases[0])
    adam = tiny(phases=[TRAVEL])
    assert rates[0.0] == pytest.approx(proxy_rate(started(adam, tmp_path / "adam"), adam.phases[0]))
    assert rates[0.9] == pytest.approx(0.1 * rates[0.0])
    moved = {}
    for momentum, rate in rates.items():
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.RMSprop([weight], lr=rate, momentum=momentum)
        for _ in range(3000):
            weight.grad = torch.ones(1)
            optimizer.step()
        moved[momentum] = -weight.item()
    assert moved[0.9] == pytest.approx(moved[0.0], rel=0.01)
    assert moved[0.0] == pytest.approx(3000 * rates[0.0], rel=0.05)


def test_where_cosine_counts_travel_is_relative_to_the_proxies(tmp_path):
    recipe = tiny(loss={"name": "proxy_nca_pp"}, phases=[TRAVEL])
    job = started(recipe, tmp_path / "start")
    length = job.loss.proxies.detach().square().sum(1).mean().sqrt().item()
    state = checkpoint_after_a_step(recipe, tmp_path / "run")
    assert state["state"]["proxy_rate"] == pytest.approx(0.5 * length / (4 * 32), rel=1e-4)


def test_travel_takes_the_place_of_the_rate(tmp_path):
    for phase in ({**TRAVEL, "proxy_learning_rate": 0.1}, {**TRAVEL, "proxy_travel": None}):
        with pytest.raises(ValueError, match="either proxy_learning_rate or proxy_travel"):
            tiny(phases=[phase])
    for optimizer in ({"name": "sgd"}, {"eps": 1.0}):
        with pytest.raises(ValueError, match=r"proxy_travel needs adam.*proxy_learning_rate"):
            tiny(phases=[TRAVEL], optimizer=optimizer)
    with pytest.raises(ValueError, match="triplet has no proxies that travel"):
        train_recipe(tiny(loss={"name": "triplet"}, phases=[TRAVEL]), tmp_path)


def test_another_loss_takes_the_travel_of_its_card():
    settings = tiny(phases=[TRAVEL]).model_dump(mode="json")
    (phase,) = parse_recipe(change_loss(settings, "proxy_nca_pp")).phases
    assert (phase.proxy_travel, phase.proxy_learning_rate) == (2.0, None)
    (phase,) = parse_recipe(change_loss(settings, "triplet")).phases
    assert phase.proxy_travel is None
    assert phase.proxy_learning_rate > 0
    settings = tiny(phases=[TRAVEL, {**TRAVEL, "proxy_travel": 0.05}]).model_dump(mode="json")
    travels = [phase.proxy_travel for phase in parse_recipe(change_loss(settings, "proxy_nca_pp")).phases]
    assert travels == [2.0, pytest.approx(0.2)]


def test_pca_needs_a_head():
    with pytest.raises(ValueError, match=r"head_init pca.*head none"):
        tiny(model={**PCA, "head": "none"})


ALL_OF_IT = {
    "model": PCA,
    "loss": with_loss("warped_softmax", scale="auto", alpha="auto"),
    "optimizer": {"wise_ft": 0.5, "l2_sp": 1.0},
    "phases": [{**TRAVEL, "epochs": 2}],
    "evaluation": {"every": 1, "patience": 5},
}


def test_a_run_with_all_of_it_resumes_to_the_very_same_end(tmp_path):
    whole = train_recipe(tiny(**ALL_OF_IT), tmp_path / "whole")
    with pytest.raises(StoppedError):
        train_recipe(
            tiny(**ALL_OF_IT),
            tmp_path / "cut",
            on_event=Steps(4, lambda: signal.raise_signal(signal.SIGINT)),
        )
    assert outcome(train_recipe(tiny(**ALL_OF_IT), tmp_path / "cut", resume=True)) == outcome(whole)


def test_what_is_handed_out_lies_between_start_and_end(tmp_path):
    quiet = {"evaluation": {"clustering": False}}
    run = train_recipe(tiny(optimizer={"wise_ft": 0.25}, **quiet), tmp_path)
    trained, start = run.load_checkpoint()[0]["model"], run.load_checkpoint()[0]["start"]
    torch.manual_seed(0)
    first = Embedder("small_conv", 16).state_dict()
    for name, tensor in run.load_model().items():
        assert torch.equal(start[name], first[name])
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, 0.75 * start[name] + 0.25 * trained[name])
    assert not torch.equal(run.load_model()["head.weight"], trained["head.weight"])
    assert run.result().metrics["recall@1"] > 0


def test_weights_are_pulled_to_their_start_by_rate_times_decay(tmp_path):
    """So strongly that they stay where they were: 200 x the rate of 0.005 is all of the way."""
    frozen = {"embedding_size": 16, "freeze_batch_norm": True}
    run = train_recipe(tiny(model=frozen, optimizer={"l2_sp": 200.0}, phases=[PHASE]), tmp_path / "all")
    checkpoint = run.load_checkpoint()[0]
    assert torch.equal(checkpoint["model"]["head.weight"], checkpoint["start"]["head.weight"])
    half = checkpoint_after_a_step(tiny(optimizer={"l2_sp": 100.0}, phases=[PHASE]), tmp_path / "half")
    free = checkpoint_after_a_step(tiny(phases=[PHASE]), tmp_path / "free")
    start = half["start"]["head.weight"]
    expected = (free["model"]["head.weight"] + start) / 2
    torch.testing.assert_close(half["model"]["head.weight"], expected)
    assert "start" not in free
    assert math.isfinite(half["state"]["loss"])


@pytest.mark.slow
def test_two_processes_start_and_measure_as_one_does(tmp_path):
    rates = {
        "epochs": 2,
        "learning_rate": 0.002,
        "proxy_learning_rate": 0.2,
    }  # for eps 1
    recipe = tiny(
        model={**PCA, "freeze_batch_norm": True},
        loss=with_loss("warped_softmax", scale="auto", alpha="auto"),
        optimizer={"eps": 1.0, "wise_ft": 0.5, "l2_sp": 1.0},
        phases=[rates],
    )
    one, two = train_recipe(recipe, tmp_path / "one"), two_processes(recipe, tmp_path)
    assert losses_of(two) == pytest.approx(losses_of(one), abs=1e-4)
    for ours, theirs in zip(one.history(), two.history(), strict=True):
        assert theirs["scale"] == pytest.approx(ours["scale"], rel=1e-3)
        assert theirs["alpha"] == pytest.approx(ours["alpha"], rel=1e-3)
    assert two.result().metrics["map@r"] == pytest.approx(one.result().metrics["map@r"], abs=0.02)


def test_looks_judge_shares_of_the_way_by_class(tmp_path):
    looks = {"every": 1, "interpolations": [0.0, 0.5, 1.0], "clustering": False}
    run = train_recipe(tiny(evaluation=looks), tmp_path)
    first, second = (row["interpolations"] for row in run.history())
    assert set(first) == {"0.0", "0.5", "1.0"}
    assert set(second) == {"0.5", "1.0"}  # the start stays what it is
    values = {share: sum(classes.values()) / 20 for share, classes in first.items()}
    assert all(len(classes) == 20 for classes in (*first.values(), *second.values()))
    for row in run.history():  # all classes have as many images
        mean = sum(row["interpolations"]["1.0"].values()) / 20
        assert mean == pytest.approx(row["validation"]["map@r"])
    assert len(set(values.values())) == 3
    frozen = tiny(evaluation={"clustering": False}, phases=[{**PHASE, "epochs": 0}])
    assert train_recipe(frozen, tmp_path / "frozen").result().metrics["map@r"] == pytest.approx(values["0.0"])
    half = tiny(evaluation={"clustering": False}, optimizer={"wise_ft": 0.5}, phases=[PHASE])
    assert train_recipe(half, tmp_path / "half").result().metrics["map@r"] == pytest.approx(values["0.5"])
