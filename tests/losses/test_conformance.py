"""What every entry of LOSSES is held to; `cases_*.py` say how each is tried."""

import copy
import importlib
import importlib.util
import inspect
import math
import pickle
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support.loss_cases import Case, arrays_of, derivative
from torch.func import functional_call
from torch.nn import Parameter

from softwarp.losses import LOSSES, card_of
from softwarp.losses.contract import KINDS

TESTS = Path(__file__).parents[1]
SIZE = 6  # of embeddings
EXACT = 1e-8  # relative, in float64
names = pytest.mark.parametrize("name", LOSSES)


def gather_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for path in sorted((TESTS / "support").glob("cases_*.py")):
        found = importlib.import_module(f"support.{path.stem}").CASES
        assert not set(found) & set(cases), f"{path.name} repeats a case"
        cases |= found
    return cases


CASES = gather_cases()


def make(name, loss_class=None):
    """The loss of that name in double precision, with one class more than the trial batch has."""
    case = CASES[name]
    torch.manual_seed(0)
    loss = (loss_class or LOSSES[name])(num_classes(case), SIZE, **case.settings)
    return loss.double().train(case.training)


def num_classes(case):
    return case.classes + 1 + (case.classes + 1 == SIZE)  # no other axis is as long as the one of classes


@cache
def trial(name):
    """Embeddings in double precision whose numbers float32 can hold, and shuffled labels."""
    case = CASES[name]
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(case.classes).repeat_interleave(case.samples)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return torch.randn(len(labels), SIZE, generator=generator).double(), labels


def forward(loss, embeddings, labels, parameters=None):
    """The loss's value, always from the same random numbers and the same state."""
    torch.manual_seed(2)
    return functional_call(copy.deepcopy(loss), parameters or {}, (embeddings, labels))


def reference(name, loss):
    embeddings, labels = trial(name)
    case = CASES[name]
    return float(case.reference(embeddings.numpy(), labels.numpy(), arrays_of(loss), **case.settings))


def value_and_gradients(loss, embeddings, labels):
    """The value, and the gradients for the embeddings and for every parameter that has one."""
    embeddings = embeddings.clone().requires_grad_()
    parameters = {name: Parameter(value.detach()) for name, value in loss.named_parameters()}
    value = forward(loss, embeddings, labels, parameters)
    assert value.shape == ()
    tensors = [embeddings, *parameters.values()]
    found = torch.autograd.grad(value, tensors, allow_unused=True)
    assert found[0] is not None, "no gradient path to the embeddings"
    gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]
    return value.detach(), gradients, dict(zip(parameters, gradients[1:], strict=True))


def assert_finite(loss, embeddings, labels):
    value, gradients, _ = value_and_gradients(loss, embeddings, labels)
    assert torch.isfinite(value)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    return value


@names
def test_value_equals_the_reference(name):
    loss = make(name)
    expected = reference(name, loss)
    assert math.isfinite(expected)
    assert expected != 0, "the trial batch must give the loss something to do"
    assert forward(loss, *trial(name)).item() == pytest.approx(expected, rel=EXACT, abs=1e-12)


@names
def test_float32_is_near_the_reference_and_finite(name):
    loss, (embeddings, labels) = make(name).float(), trial(name)
    expected = reference(name, loss)
    assert float(assert_finite(loss, embeddings.float(), labels)) == pytest.approx(expected, rel=1e-4)


def stated(case, embeddings, labels, state, held_embeddings, held_state):
    """What the gradient is the derivative of: the reference, or where the loss says so its surrogate."""
    if case.surrogate is None:
        return case.reference(embeddings, labels, state, **case.settings)
    return case.surrogate(embeddings, labels, state, held_embeddings, held_state, **case.settings)


@names
def test_gradient_is_that_of_the_reference(name):
    """Along random directions, for the embeddings and for every parameter: no part of it can hide."""
    case, loss, (embeddings, labels) = CASES[name], make(name), trial(name)
    _, (of_embeddings, *_), gradients = value_and_gradients(loss, embeddings, labels)
    points, labels, state = embeddings.numpy(), labels.numpy(), arrays_of(loss)
    values = {key: state[key] for key in gradients} | {"embeddings": points}
    draw = np.random.default_rng(6)
    for key, gradient in [*gradients.items(), ("embeddings", of_embeddings)]:

        def moved(array, key=key):
            changed = values | {key: array}
            return stated(case, changed["embeddings"], labels, state | changed, points, state)

        for _ in range(3):
            direction = draw.standard_normal(gradient.shape)
            expected = derivative(moved, values[key], direction)
            found = float((gradient.numpy() * direction).sum())
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-8), key


@names
def test_a_step_down_the_gradient_lowers_it(name):
    loss, (embeddings, labels) = make(name), trial(name)
    value, gradients, of_parameters = value_and_gradients(loss, embeddings, labels)
    steepest = max(float(gradient.abs().max()) for gradient in gradients)
    assert steepest > 0
    # Where the gradient is not the value's own (steps, held weights), a small step may not show.
    lengths = (1e-4,) if CASES[name].surrogate is None else (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

    def after(length):
        step = length / steepest
        parameters = {
            key: Parameter(p.detach() - step * of_parameters[key]) for key, p in loss.named_parameters()
        }
        return forward(loss, embeddings - step * gradients[0], labels, parameters)

    assert any(after(length).item() < value.item() for length in lengths)


@names
def test_order_of_the_batch_does_not_matter(name):
    loss, (embeddings, labels) = make(name), trial(name)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    if CASES[name].order:  # samples of a class keep their order, classes are mixed again
        shuffled = labels[order]
        for label in labels.unique():
            order[shuffled == label] = (labels == label).nonzero().flatten()
    torch.testing.assert_close(
        forward(loss, embeddings[order], labels[order]), forward(loss, embeddings, labels)
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if not CASES[name].renaming])
def test_names_of_classes_do_not_matter(name):
    case = CASES[name]
    loss, (embeddings, labels) = make(name), trial(name)
    value = forward(loss, embeddings, labels)
    renamed = torch.randperm(num_classes(case), generator=torch.Generator().manual_seed(4))
    assert (renamed[labels] != labels).any()
    state = loss.state_dict()
    for key, tensor in state.items():
        if isinstance(tensor, torch.Tensor) and tensor.shape[:1] == renamed.shape:
            state[key] = tensor[renamed.argsort()]
    loss.load_state_dict(state)
    torch.testing.assert_close(forward(loss, embeddings, renamed[labels]), value)


@names
def test_state_goes_round(name):
    loss, (embeddings, labels) = make(name), trial(name)
    value = forward(loss, embeddings, labels)
    torch.manual_seed(5)
    other = LOSSES[name](num_classes(CASES[name]), SIZE, **CASES[name].settings).double()
    other.train(CASES[name].training).load_state_dict(loss.state_dict())
    assert torch.equal(forward(other, embeddings, labels), value)


@names
def test_bfloat16_is_finite_and_leaves_parameters_alone(name):
    loss, (embeddings, labels) = make(name).float(), trial(name)
    before = {key: value.clone() for key, value in loss.named_parameters()}
    expected = reference(name, loss)
    with torch.autocast("cpu", torch.bfloat16):
        value = assert_finite(loss, embeddings.float(), labels)
        half = assert_finite(loss, embeddings.bfloat16(), labels)
        loss(embeddings.bfloat16(), labels)
    assert value.dtype == half.dtype == torch.float32
    assert float(value) == pytest.approx(expected, rel=1e-4)
    for key, parameter in loss.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, before[key])


def degenerate(name):
    embeddings, labels = trial(name)
    embeddings, classes = embeddings.float(), num_classes(CASES[name])
    return {
        "one sample": (embeddings[:1], labels[:1]),
        "one class": (embeddings, torch.zeros_like(labels)),
        "all singletons": (embeddings[:classes], torch.arange(classes)),
        "one singleton": (embeddings[: len(labels) - 1], labels[: len(labels) - 1].clamp(max=1)),
        "duplicates": (embeddings[labels], labels),
        "all the same": (embeddings[:1].repeat(len(labels), 1), labels),
        "all on the origin": (torch.zeros_like(embeddings), labels),
        "far away": (1e6 * embeddings, labels),
    }


REFUSALS = {
    "one sample": "at least 2 (classes|embeddings).* in (a|the) batch|in the batch: at least 2 classes",
    "one class": "at least 2 classes",
    "all singletons": "2 samples",
}


@names
@pytest.mark.parametrize("kind", [*degenerate(next(iter(LOSSES)))])
def test_a_degenerate_batch_is_finite_or_refused(name, kind):
    loss, (embeddings, labels) = make(name).float(), degenerate(name)[kind]
    refused = ""
    try:
        assert_finite(loss, embeddings, labels)
    except ValueError as error:
        refused = str(error)
    assert not refused or re.search(REFUSALS[kind], refused)  # other kinds are never refused


def proxies_of(loss):
    return next((p for p in loss.parameters() if p.dim() > 1 and p.shape[-1] == SIZE), None)


@pytest.mark.parametrize("name", [name for name in LOSSES if proxies_of(make(name)) is not None])
def test_a_batch_on_its_proxies_is_finite(name):
    """Distances of zero and angles of zero have gradients that can be infinite."""
    loss = make(name).float()
    proxies = proxies_of(loss)
    _, labels = trial(name)
    rows = proxies.detach().reshape(len(proxies), -1, SIZE)[:, 0]
    assert_finite(loss, rows[labels % len(rows)], labels)


WRONG = {
    "dimensions": "dimensions|embedding_size",
    "one vector": r"\[N, D\]",
    "integers": "floating point",
    "fewer labels": r"labels .*\[N\]",
    "float labels": "labels .*integers",
    "class": "labels .*0 to",
    "empty": "empty",
    "nan": "NaN",
}


@names
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_batch_is_refused(name, wrong):
    loss, (embeddings, labels) = make(name).float(), trial(name)
    embeddings = embeddings.float()
    batch = {
        "dimensions": (embeddings[:, 1:], labels),
        "one vector": (embeddings[0], labels),
        "integers": (embeddings.long(), labels),
        "fewer labels": (embeddings, labels[1:]),
        "float labels": (embeddings, labels.float()),
        "class": (embeddings, labels + num_classes(CASES[name])),
        "empty": (embeddings[:0], labels[:0]),
        "nan": (torch.full_like(embeddings, math.nan), labels),
    }[wrong]
    with pytest.raises(ValueError, match=WRONG[wrong]):
        loss(*batch)


def load_mutant(name, old, new, folder):
    """The loss's class, loaded from its source with `old` replaced by `new`."""
    source = Path(inspect.getsourcefile(LOSSES[name])).read_text()
    assert source.count(old) == 1, f"{old!r} must stand once in the source of {name}"
    path = folder / "mutant_of_a_loss.py"
    path.write_text(source.replace(old, new))
    compile(path.read_text(), str(path), "exec")  # a mutant that is no Python proves nothing
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return getattr(module, LOSSES[name].__name__)


MUTANTS = [(name, *mutant) for name, case in CASES.items() if name in LOSSES for mutant in case.mutants]


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[f"{m[0]}: {m[2]}" for m in MUTANTS])
def test_the_reference_kills_mutants(name, old, new, tmp_path):
    loss = make(name)
    expected = reference(name, loss)
    mutant = make(name, load_mutant(name, old, new, tmp_path))
    mutant.load_state_dict(loss.state_dict())
    value = forward(mutant, *trial(name)).item()  # a mutant that raises fails the test: it proves nothing
    assert value != pytest.approx(expected, rel=EXACT, abs=1e-12)


def test_every_loss_has_a_case_and_every_case_a_loss():
    assert set(CASES) == set(LOSSES)
    for name, case in CASES.items():
        assert len(set(case.mutants)) >= 2, name


@names
def test_every_loss_says_what_it_is(name):
    card, loss_class = card_of(name), LOSSES[name]
    assert card.title
    assert card.equation
    assert "\n" not in card.equation
    assert str(card.year) in card.citation
    assert card.kind in KINDS
    assert loss_class.distance in ("euclidean", "cosine")
    assert loss_class.__doc__
    first, second, *settings = list(inspect.signature(loss_class).parameters.values())
    assert (first.name, second.name) == ("num_classes", "embedding_size")
    assert all(setting.kind in (setting.KEYWORD_ONLY, setting.VAR_KEYWORD) for setting in settings)
    assert card.search_space
    for setting, (scale, low, high) in card.search_space.items():
        assert setting in [known.name for known in settings]
        assert scale in ("log", "float", "int", "auto")
        assert low < high
        assert np.isfinite([low, high]).all()
        assert scale not in ("log", "auto") or low > 0
    assert f"| `{name}` |" in (TESTS.parent / "docs" / "losses.md").read_text()


@names
def test_the_published_batch_serves_the_loss(name):
    card = card_of(name)
    if isinstance(card.training.batch, tuple):
        classes, samples = card.training.batch
        card.check_counts(torch.arange(classes).repeat(samples))


@names
def test_a_scaled_loss_has_its_gradient_scaled(name):
    """As half precision and accumulated batches need it."""
    loss, (embeddings, labels) = make(name), trial(name)
    gradients = []
    for scale in (1.0, 1024.0):
        points = embeddings.clone().requires_grad_()
        (scale * forward(loss, points, labels)).backward()
        gradients.append(points.grad / scale)
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients)


@names
def test_a_sample_that_is_not_a_number_is_refused_and_leaves_no_trace(name):
    loss, (embeddings, labels) = make(name).train(), trial(name)
    before = copy.deepcopy(loss.state_dict())
    for bad in (math.nan, math.inf):
        spoilt = embeddings.clone()
        spoilt[1, 0] = bad
        with pytest.raises(ValueError, match=r"embeddings .*NaN .*1 of \d+ rows \(1\)"):
            loss(spoilt, labels)
    after = loss.state_dict()
    assert {key for key, value in before.items() if not same(value, after[key])} == set()


def same(first, second):
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@names
def test_it_can_be_pickled(name):
    loss = make(name)
    forward(loss, *trial(name))
    again = pickle.loads(pickle.dumps(loss))
    assert torch.equal(forward(again, *trial(name)), forward(loss, *trial(name)))
