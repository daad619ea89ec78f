"""Sharded losses: value and gradients are those of one process, whatever the number of processes."""

import pytest
import torch
from support.sharding_processes import AUTOMATIC, LOSSES, SIZE, near_proxies, problem, report, steps, work
from torch import multiprocessing

from softwarp.losses import LOSSES as ALL
from softwarp.losses import ArcFaceLoss, TripletLoss, WarpedSoftmaxLoss, build_loss
from softwarp.losses.contract import ClassSoftmax, class_vectors_of, proxies_of, start_phase
from softwarp.losses.sharding import ShardedLoss

NEAR = {"rtol": 1e-6, "atol": 1e-9}
names = pytest.mark.parametrize("name", LOSSES)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What 1, 2 and 3 processes found out; one of them needs no process group."""
    folder = tmp_path_factory.mktemp("shards")
    start(folder, (3, 2))
    return {1: [report(0, 1)]} | {world: read(folder, world) for world in (2, 3)}


def start(folder, worlds):
    """Children are copies of this process, which has imported everything."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    multiprocessing.start_processes(work, args=(folder, worlds), nprocs=max(worlds), start_method="fork")
    torch.set_num_threads(threads)


def read(folder, world):
    return [torch.load(folder / f"{world}-{rank}.pt", weights_only=True) for rank in range(world)]


def reference(loss, embeddings, labels):
    embeddings = embeddings.clone().requires_grad_()
    torch.manual_seed(3)
    value = loss.train()(embeddings, labels)
    value.backward()
    rows = {name: each.grad for name, each in loss.named_parameters()}
    return {"value": value.detach(), "embeddings": embeddings.grad, "rows": rows}


def assert_equal(found, expected):
    """All processes report one value; their gradients in the order of ranks are those of the reference."""
    for each in found:
        torch.testing.assert_close(each["value"], expected["value"], **NEAR)
    joined = torch.cat([each["embeddings"] for each in found])
    torch.testing.assert_close(joined, expected["embeddings"], **NEAR)
    assert expected["rows"]
    for name, gradient in expected["rows"].items():
        joined = torch.cat([each["rows"][name] for each in found])
        torch.testing.assert_close(joined, gradient, **NEAR)
        assert gradient.abs().max() > 1e-4


def check_plain(name, found, classes):
    assert torch.cat([each["columns"] for each in found]).tolist() == list(range(classes))
    assert_equal(found, reference(*problem(name, LOSSES[name], classes)))


def check_sampled(name, found):
    """The reference is the loss over the classes of the sample alone."""
    loss, embeddings, labels = problem(name, LOSSES[name], 40)
    sample = torch.cat([each["columns"] for each in found])
    assert set(labels.tolist()) < set(sample.tolist())
    assert len(labels.unique()) < len(sample) == 12  # 0.3 of 40
    small = build_loss(name, len(sample), SIZE, **LOSSES[name]).double()
    for few, every in zip(small.parameters(), loss.parameters(), strict=True):
        few.data = every.data[sample]
    assert_equal(found, reference(small, embeddings, torch.searchsorted(sample, labels)))
    return sample


@names
@pytest.mark.parametrize("world", [1, 2, 3])
def test_value_and_gradients_are_those_of_one_process(name, world, reports):
    check_plain(name, [each["plain"][name] for each in reports[world]], 11)


@names
def test_a_process_may_be_left_without_classes(name, reports):
    found = [each["few"][name] for each in reports[3]]
    assert [len(each["columns"]) for each in found] == [2, 2, 0]
    check_plain(name, found, 4)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_single_class_has_no_rival(world, reports):
    for each in reports[world]:
        assert each["alone"]["value"] == 0
        assert not each["alone"]["embeddings"].any()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_process_can_ask_for_class_vectors_of_the_others(world, reports):
    proxies = problem("warped_softmax", {}, 11)[0].proxies.detach()
    for each in reports[world]:
        assert torch.equal(each["views"]["vectors"], proxies[[9, 0, 4, 4]])
        torch.testing.assert_close(each["views"]["mean"], proxies.mean(0))
    bounds = [each["views"]["here"] for each in reports[world]]
    assert bounds == {1: [[0, 11]], 2: [[0, 6], [6, 11]], 3: [[0, 4], [4, 8], [8, 11]]}[world]


@names
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_sample_is_the_loss_over_its_classes_and_the_same_for_any_number_of_processes(name, world, reports):
    sample = check_sampled(name, [each["sampled"][name] for each in reports[world]])
    assert sample.tolist() == reports[1][0]["sampled"][name]["columns"].tolist()


@pytest.mark.parametrize("name", AUTOMATIC)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_automatic_settings_are_those_of_one_process(name, world, reports):
    loss, embeddings, labels = near_proxies(name, 2500)
    expected = steps(loss.train(), embeddings, labels)
    found = [each["automatic"][name] for each in reports[world]]
    for each in found:
        for ours, theirs in zip(each["readings"], expected["readings"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
    joined = torch.cat([each["proxies"] for each in found])
    torch.testing.assert_close(joined, expected["proxies"], **NEAR)
    assert len({each["scale"] for each in expected["readings"]}) == 3


@pytest.mark.slow
def test_four_processes_too(tmp_path):
    start(tmp_path, (4,))
    found = read(tmp_path, 4)
    for name in LOSSES:
        check_plain(name, [each["plain"][name] for each in found], 11)
        check_plain(name, [each["few"][name] for each in found], 4)
        check_sampled(name, [each["sampled"][name] for each in found])


def test_every_softmax_over_classes_is_tried():
    assert {name for name, loss in ALL.items() if hasattr(loss, "terms")} == set(LOSSES)


OPTIMIZERS = {
    "adam": lambda rows: torch.optim.Adam(rows, lr=0.1),
    "adamw": lambda rows: torch.optim.AdamW(rows, lr=0.1, weight_decay=0.1),
    "radam": lambda rows: torch.optim.RAdam(rows, lr=0.1),
    "rmsprop": lambda rows: torch.optim.RMSprop(rows, lr=0.1, momentum=0.9),
    "sgd": lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adagrad": lambda rows: torch.optim.Adagrad(rows, lr=0.1, initial_accumulator_value=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_sees_the_sampled_rows_alone(name):
    """As if it took a dense step, after which all rows that were not in the sample are put back."""
    loss, embeddings, labels = problem("l2_softmax", {}, 40)
    dense = [torch.nn.Parameter(each.detach().clone()) for each in loss.parameters()]
    sharded = ShardedLoss(loss, sample_rate=0.3)
    optimizer, reference = OPTIMIZERS[name](sharded.parameters()), OPTIMIZERS[name](dense)
    seen = torch.zeros(40, dtype=torch.bool)
    for _ in range(6):
        with sharded.sampled(labels, optimizer):
            sharded(embeddings, labels).backward()
            columns = sharded.columns
            held = [each.detach().clone() for each in dense]
            state = [dict(reference.state[each]) for each in dense]
            for full, few in zip(dense, sharded.parameters(), strict=True):
                full.grad = torch.zeros_like(full).index_copy(0, columns, few.grad)
            optimizer.step()
        moments = [{key: each.clone() for key, each in part.items() if each.dim()} for part in state]
        reference.step()
        seen[columns] = True
        others = torch.ones(40, dtype=torch.bool).index_fill(0, columns, False)
        with torch.no_grad():
            for full, before, old in zip(dense, held, moments, strict=True):
                full[others] = before[others]
                for key, each in reference.state[full].items():
                    if each is not None and each.dim():
                        each[others] = old[key][others] if key in old else 0.0
    for full, ours in zip(dense, sharded.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), full.detach(), rtol=0, atol=0)
        for key, each in reference.state[full].items():
            if each is not None:
                torch.testing.assert_close(optimizer.state[ours][key], each, rtol=0, atol=0)
    assert not seen.all()


def test_a_loop_may_keep_the_loss_of_the_step_before():
    loss, embeddings, labels = problem("l2_softmax", {}, 40)
    sharded = ShardedLoss(loss, sample_rate=0.3)
    optimizer, kept = torch.optim.SGD(sharded.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(3):
        with sharded.sampled(labels, optimizer):
            kept.append(sharded(embeddings, labels))
            kept[-1].backward()
            optimizer.step()
    sharded(embeddings, labels).backward()  # with all classes
    assert [len(each.grad) for each in sharded.parameters()] == [40, 40]


def test_a_failed_step_leaves_everything_as_it_was():
    loss, embeddings, labels = problem("cosface", {}, 40)
    sharded = ShardedLoss(loss, sample_rate=0.3)
    optimizer = torch.optim.Adam(sharded.parameters())
    before = loss.proxies.detach().clone()
    with pytest.raises(ValueError, match="NaN"), sharded.sampled(labels, optimizer):
        sharded(embeddings * torch.nan, labels)
    assert torch.equal(loss.proxies, before)
    assert sharded.columns.tolist() == list(range(40))
    assert sharded.competing == sharded.width == 40


@pytest.mark.parametrize(
    ("rate", "present", "expected"), [(0.3, 8, 12), (0.5, 8, 20), (0.1, 8, 8), (0.01, 1, 1)]
)
def test_a_sample_has_the_rate_s_share_of_all_classes_with_those_of_the_batch(rate, present, expected):
    """As insightface counts: int(rate x C) with the positives, or the positives alone if they are more."""
    sharded = ShardedLoss(problem("cosface", {}, 40)[0], sample_rate=rate)
    batch, drawn = torch.arange(0, 40, 5)[:present].repeat(2), []
    for _ in range(50):
        with sharded.sampled(batch):
            drawn.append(sharded.columns.tolist())
    for columns in drawn:
        assert len(columns) == len(set(columns)) == expected
        assert columns == sorted(columns)
        assert set(batch.tolist()) <= set(columns)
    if expected > present:
        assert set().union(*drawn) == set(range(40))


def test_samples_change_from_step_to_step_and_are_remembered():
    loss, _, labels = problem("cosface", {}, 40)
    sharded = ShardedLoss(loss, sample_rate=0.3)
    drawn = []
    for _ in range(3):
        state = sharded.state_dict()
        with sharded.sampled(labels):
            drawn.append(sharded.columns.tolist())
    assert drawn[0] != drawn[1] != drawn[2]
    again = ShardedLoss(problem("cosface", {}, 40)[0], sample_rate=0.3)
    again.load_state_dict({key: each.clone() for key, each in state.items()} | {"draws": torch.tensor(2)})
    with again.sampled(labels):
        assert again.columns.tolist() == drawn[2]


def test_a_sharded_loss_keeps_the_contract():
    loss = ShardedLoss(WarpedSoftmaxLoss(10, 4))
    assert (loss.distance, loss.card.title) == ("euclidean", "Warped softmax")
    assert class_vectors_of(loss) is proxies_of(loss) is loss.loss.proxies
    start_phase(loss, {"alpha": 3.0})
    assert loss.readings()["alpha"] == 3.0
    with pytest.raises(ValueError, match="aplha"):
        start_phase(loss, {"aplha": 3.0})
    assert proxies_of(ShardedLoss(build_loss("l2_softmax", 10, 4))) is None
    assert isinstance(loss.loss, ClassSoftmax)


def test_what_cannot_be_divided_is_named():
    with pytest.raises(ValueError, match=r"TripletLoss.*arcface"):
        ShardedLoss(TripletLoss(10, 4))
    with pytest.raises(ValueError, match=r"sample_rate.*0\.0"):
        ShardedLoss(ArcFaceLoss(10, 4), sample_rate=0.0)
    odd = ArcFaceLoss(10, 4)
    odd.learned_scale = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"learned_scale has 1 rows for 10 classes"):
        ShardedLoss(odd)
    with pytest.raises(ValueError, match=r"0 to 9"):
        ShardedLoss(ArcFaceLoss(10, 4))(torch.zeros(1, 4), torch.tensor([10]))
