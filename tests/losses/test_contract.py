"""What trainer, sharder and docs may rely on, for every entry of LOSSES; and a new loss from end to end."""

import ast
import inspect
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softwarp import losses
from softwarp.losses import LOSSES, WarpedSoftmaxLoss, build_loss, card_of
from softwarp.losses.contract import Loss, class_vectors_of, phase_settings_of, proxies_of, start_phase

ROOT = Path(__file__).parents[2]
CLASSES, SIZE = 7, 4
names = pytest.mark.parametrize("name", LOSSES)


@names
def test_every_loss_keeps_the_contract(name):
    loss = build_loss(name, CLASSES, SIZE)
    assert isinstance(loss, Loss)
    assert loss.distance in ("euclidean", "cosine")
    vectors, learned = class_vectors_of(loss), dict(loss.named_parameters())
    if vectors is None:
        assert card_of(name).kind in ("pairs", "ranking")
        assert not any(p.shape[:1] == (CLASSES,) and p.dim() > 1 for p in learned.values())
    else:
        assert any(vectors is parameter for parameter in learned.values())
        assert (vectors.shape[0], vectors.shape[-1]) == (CLASSES, SIZE)
        assert vectors.requires_grad


def test_every_class_is_exported_by_name():
    """So that a user's `mypy --strict` knows it: an import alone is no export."""
    tree = ast.parse(Path(losses.__file__).read_text())
    imports = [each for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names]
    assert len(imports) > len(LOSSES)
    assert all(each.asname == each.name for each in imports)
    assert {loss.__name__ for loss in LOSSES.values()} <= {each.name for each in imports}


@names
def test_avg_dtp_is_measured_from_one_point_per_class(name):
    """Weights of a linear classifier and several vectors per class are no such points."""
    proxies = proxies_of(build_loss(name, CLASSES, SIZE))
    if proxies is not None:
        assert proxies.shape == (CLASSES, SIZE)
        assert card_of(name).kind in ("proxies", "classifier")


def test_avg_dtp_is_measured_for_the_paper_s_losses_and_not_for_pairs_or_linear_classifiers():
    found = {name for name in LOSSES if proxies_of(build_loss(name, CLASSES, SIZE)) is not None}
    assert found >= {"warped_softmax", "euclidean_softmax", "proxy_nca_pp", "proxy_anchor", "arcface"}
    assert not found & {"triplet", "cross_entropy", "soft_triple", "proxy_gml", "hist", "sgsl"}


SETTING_OF_A_PHASE = [
    (name, setting)
    for name in LOSSES
    for setting in phase_settings_of(LOSSES[name])
    if setting.isidentifier()
]


def value_and_gradient(loss):
    torch.manual_seed(0)
    embeddings, labels = 15 * torch.randn(4 * CLASSES, SIZE), torch.arange(CLASSES).repeat(4)
    value = loss(embeddings.requires_grad_(), labels)
    return torch.cat([value[None], *torch.autograd.grad(value, embeddings)[0]])


@pytest.mark.parametrize(("name", "setting"), SETTING_OF_A_PHASE)
def test_a_phase_s_setting_is_taken_and_survives_a_checkpoint(name, setting):
    loss, other = (build_loss(name, CLASSES, SIZE) for _ in range(2))
    before, new = value_and_gradient(loss), 1.75 if setting == "k2" else 0.75
    start_phase(loss, {setting: new})
    assert not torch.equal(value_and_gradient(loss), before)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(value_and_gradient(other), value_and_gradient(loss))
    assert getattr(other, setting) == getattr(loss, setting) == new
    assert setting in inspect.signature(LOSSES[name]).parameters


def test_settings_of_phases_are_those_of_softmaxes_over_classes():
    assert len(SETTING_OF_A_PHASE) >= 12
    assert phase_settings_of(LOSSES["warped_softmax"]) == ["alpha", "k1", "k2", "scale", "delta"]


def test_an_unknown_setting_is_answered_with_the_nearest_and_the_loss():
    with pytest.raises(ValueError, match=r"Warped softmax .*'aplha'.*alpha"):
        start_phase(build_loss("warped_softmax", 3, 2), {"aplha": 1.0})
    with pytest.raises(ValueError, match=r"Triplet .*'scale'.*none"):
        start_phase(build_loss("triplet", 3, 2), {"scale": 1.0})
    with pytest.raises(ValueError, match=r"Euclidean softmax .*'wide'"):
        start_phase(build_loss("euclidean_softmax", 3, 2), {"scale": "wide"})
    start_phase(build_loss("triplet", 3, 2), {})


def test_a_wrapped_loss_takes_its_own_settings():
    loss = build_loss("hierarchical_proxies", 6, 2, loss="euclidean_softmax")
    start_phase(loss, {"scale": 3.0})
    assert loss.fine.scale == 3.0
    other = build_loss("hierarchical_proxies", 6, 2, loss="euclidean_softmax")
    other.load_state_dict(loss.state_dict())
    assert other.fine.scale == 3.0
    with pytest.raises(ValueError, match=r"Euclidean softmax .*'alpha'"):
        start_phase(loss, {"alpha": 1.0})


def test_a_phase_cannot_set_an_infinite_radius():
    loss = WarpedSoftmaxLoss(3, 2, alpha=2.0)
    with pytest.raises(ValueError, match=r"alpha must be .*finite, got inf"):
        loss.start_phase(alpha=float("inf"))
    assert loss.alpha.item() == 2.0


@pytest.mark.parametrize("wrong", ["proxies", "k1", "more", "_extra_state"])
def test_a_state_that_cannot_be_loaded_leaves_the_warp_as_it_was(wrong):
    loss = WarpedSoftmaxLoss(3, 2, alpha=1.0, k1=0.5, k2=1.5, scale=1.0)
    state = WarpedSoftmaxLoss(3, 2, alpha=torch.tensor([1.0, 2.0, 3.0])).state_dict()
    if wrong == "k1":
        del state["k1"]
    else:
        state[wrong] = {"scale": -1.0} if wrong == "_extra_state" else torch.ones(4)
    with pytest.raises((RuntimeError, ValueError), match="scale" if wrong == "_extra_state" else wrong):
        loss.load_state_dict(state)
    assert (loss.alpha.shape, loss.alpha.item(), loss.k1.item(), loss.scale) == ((), 1.0, 0.5, 1.0)


def test_a_loss_without_the_contract_is_told_what_it_lacks():
    with pytest.raises(ValueError, match=r"Identity .*distance, card, class_vectors"):
        class_vectors_of(torch.nn.Identity())


@names
def test_a_card_says_how_the_loss_was_trained_and_by_whom(name):
    training = card_of(name).training
    learns = any(True for _ in build_loss(name, CLASSES, SIZE).parameters())
    assert (training.rate_ratio is not None) == learns
    assert training.optimizer in ("adagrad", "adam", "adamw", "radam", "rmsprop", "sgd")
    assert training.details
    assert training.by in str(training)


def test_no_two_cards_share_a_training_block_by_accident():
    """On purpose means the same object, as both losses of a file may have."""
    blocks = {name: card_of(name).training for name in LOSSES}
    for one, other in itertools.combinations(LOSSES, 2):
        assert blocks[one] is blocks[other] or blocks[one] != blocks[other], f"{one} and {other}"
    assert len({id(block) for block in blocks.values()}) >= len(LOSSES) - 2


CASE = """
import numpy as np
from support.loss_cases import Case

def student(embeddings, labels, state, *, freedom=5.0):
    total = 0.0
    for point, label in zip(embeddings, labels, strict=True):
        squares = [float(((point - proxy) ** 2).sum()) for proxy in state["proxies"]]
        kernel = [(1 + square / freedom) ** -freedom for square in squares]
        total -= np.log(kernel[label] / sum(kernel))
    return total / len(labels)

CASES = {
    "student": Case(
        student,
        mutants=(("squares / self.freedom)", "squares)"), ("-self.freedom * ", "-2 * self.freedom * ")),
        settings={"freedom": 2.0},
    )
}
"""


def enter_student(folder):
    """Add the loss of examples/own_loss.py as a contributor would: its file, and its line in LOSSES."""
    example = (ROOT / "examples" / "own_loss.py").read_text()
    imports = [
        line for line in example.splitlines() if line.startswith(("from torch", "from typing", "import t"))
    ]
    imports += [line for line in example.splitlines() if line.startswith("from softwarp.losses.")]
    loss = example[example.index("class StudentLoss") : example.index("LOSSES[")]
    (folder / "student.py").write_text("\n".join([*imports, "", "", loss]))
    text, mark = (folder / "__init__.py").read_text(), "LOSSES |= {\n"
    assert text.count(mark) == 1
    text = text.replace(mark, mark + '    "student": StudentLoss,\n')
    imported = "from softwarp.losses.student import StudentLoss as StudentLoss\n"
    (folder / "__init__.py").write_text(imported + text)


@pytest.mark.slow
def test_a_new_loss_is_one_file_one_line_and_one_reference(tmp_path):
    """In a copy of the repository: its page is made, and all that losses are held to holds for it."""
    for part in ("src/softwarp", "tests/losses", "tests/support", "tools", "results", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    enter_student(tmp_path / "src/softwarp/losses")
    (tmp_path / "tests/support/cases_student.py").write_text(CASE)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}

    def run(*words):
        words = [sys.executable, *words]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("tools/losses_docs.py")
    assert "| `student` | Student softmax |" in (tmp_path / "docs/losses.md").read_text()
    tests = ["tests/losses/test_conformance.py", "tests/losses/test_contract.py"]
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", "student or has_a_case"]
    told = run("-m", "pytest", *tests, *options)
    assert int(re.findall(r"(\d+) passed", told)[0]) > 30
