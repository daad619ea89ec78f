"""Every run and result says which code made it, and a rule that gives other values has another number."""

import hashlib
import json
import subprocess

import numpy as np
import pytest
import torch
from support.tiny_runs import PHASE, tiny

from softwarp.data.corruptions import CORRUPTIONS
from softwarp.events import Note
from softwarp.fair.tasks import open_study
from softwarp.losses import LOSSES, WarpedSoftmaxLoss, build_loss
from softwarp.losses.contract import class_vectors_of
from softwarp.metrics import retrieval_metrics
from softwarp.runs import provenance
from softwarp.runs.provenance import RULES, code, environment, outdated
from softwarp.training.train import train_recipe, training


@pytest.fixture
def checkout(tmp_path):
    """A repository with one commit, in which the package would lie."""
    folder = tmp_path / "src" / "softwarp"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("RULES = {}\n")
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*names, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    return folder


def test_a_commit_is_clean_until_a_file_of_the_package_changes(checkout):
    found = provenance._from_git(checkout)
    head = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert found == {"commit": head.stdout.strip(), "clean": True}
    (checkout.parents[1] / "notes.txt").write_text("outside of the package")
    assert provenance._from_git(checkout) == found
    (checkout / "new.py").write_text("")
    assert provenance._from_git(checkout) == found | {"clean": False}


def test_a_commit_is_not_called_clean_where_git_could_not_say(checkout, monkeypatch):
    ask = provenance._git
    monkeypatch.setattr(
        provenance, "_git", lambda folder, *words: None if words[0] == "status" else ask(folder, *words)
    )
    assert provenance._from_git(checkout)["clean"] is None


def test_a_package_in_somebody_elses_repository_has_no_commit_of_theirs(checkout, tmp_path):
    inside = checkout / "venv" / "softwarp"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    assert provenance._from_git(inside) is None
    assert provenance._from_git(tmp_path / "missing") is None


def test_an_installed_commit_is_what_pip_noted(monkeypatch):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return json.dumps({"url": "https://...", "vcs_info": {"vcs": "git", "commit_id": "abc"}})

    monkeypatch.setattr(provenance, "distribution", lambda name: Installed())
    assert provenance._from_install() == {"commit": "abc", "clean": True}
    monkeypatch.setattr(Installed, "read_text", lambda self, name: None)
    assert provenance._from_install() == {"commit": None, "clean": None}


def test_every_run_says_which_code_trained_it(tmp_path):
    run = train_recipe(tiny(phases=[PHASE]), tmp_path)
    assert run.environment()["code"] == json.loads(json.dumps(code()))
    assert environment()["code"]["rules"] == RULES


def test_a_rule_that_a_result_does_not_know_is_outdated():
    assert outdated({}, ("metrics",)) == ["metrics"]
    assert outdated(dict(RULES), tuple(RULES)) == []
    assert outdated({"metrics": RULES["metrics"] - 1}, ("metrics", "recipe")) == ["metrics", "recipe"]


def older_rules(file, *path):
    """Let a JSON file say that it is of before a change of the metrics."""
    content = json.loads(file.read_text())
    part = content
    for key in path:
        part = part[key]
    part["rules"]["metrics"] -= 1
    file.write_text(json.dumps(content))


def stopped_run(folder):
    rows = training(tiny(), folder)
    next(rows)
    rows.close()
    return folder


def test_a_run_begun_under_an_older_rule_does_not_go_on(tmp_path):
    older_rules(stopped_run(tmp_path) / "environment.json", "code")
    with pytest.raises(ValueError, match=r"change of metrics .*another folder"):
        train_recipe(tiny(), tmp_path, resume=True)
    train_recipe(tiny(), tmp_path)  # without resume it is made again


def test_a_run_older_than_written_rules_does_not_go_on(tmp_path):
    file = stopped_run(tmp_path) / "environment.json"
    file.write_text(json.dumps({"version": "0.1.0"}))
    with pytest.raises(ValueError, match=r"automatic, .*another folder"):
        train_recipe(tiny(), tmp_path, resume=True)


def test_a_rule_that_no_training_depends_on_stops_no_run(tmp_path, monkeypatch):
    stopped_run(tmp_path)
    monkeypatch.setitem(RULES, "corruptions", RULES["corruptions"] + 1)
    assert train_recipe(tiny(), tmp_path, resume=True).finished()


def test_a_finished_run_of_an_older_rule_is_kept_and_says_so(tmp_path):
    run = train_recipe(tiny(phases=[PHASE]), tmp_path)
    notes = []
    train_recipe(tiny(phases=[PHASE]), tmp_path, resume=True, on_event=notes.append)
    assert not [each for each in notes if isinstance(each, Note)]
    older_rules(run.folder / "environment.json", "code")
    train_recipe(tiny(phases=[PHASE]), tmp_path, resume=True, on_event=notes.append)
    (note,) = (each.text for each in notes if isinstance(each, Note))
    assert "change of metrics" in note
    assert "--fresh" in note


def test_a_study_begun_under_an_older_rule_does_not_go_on(tmp_path):
    open_study(tmp_path, {"trials": 5})
    open_study(tmp_path, {"trials": 5})
    older_rules(tmp_path / "study.json")
    with pytest.raises(ValueError, match=r"change of metrics .*another folder"):
        open_study(tmp_path, {"trials": 5})


def test_a_study_older_than_written_rules_goes_on(tmp_path):
    (tmp_path / "study.json").write_text(json.dumps({"trials": 5}))
    open_study(tmp_path, {"trials": 5})


# What the rules give for fixed numbers. If one of these changes, raise the rule's number in provenance.py,
# put the new value here, and make the results again that tests/docs/test_provenance.py then refuses.
GIVEN = {
    "automatic": (1, "1.0210 4.2717"),
    "automatic_from_means": (5, "1.3738 4.2717"),
    "metrics": (1, "0.0832 0.1750"),
    "corruptions": (1, "2269"),
    "class_vectors": (2, "4b59e93d"),
}


def automatic(*, placed):
    torch.manual_seed(0)
    loss = WarpedSoftmaxLoss(8, 16)
    centres = torch.randn(8, 16)
    if placed:
        loss.proxies.data.copy_(centres)
        loss.proxies_placed()
    labels = torch.arange(8).repeat(4)
    for _ in range(3):
        loss(centres[labels] + torch.randn(32, 16), labels)
    readings = loss.readings()
    return f"{readings['scale']:.4f} {readings['alpha']:.4f}"


def metrics():
    torch.manual_seed(0)
    found = retrieval_metrics(torch.randn(40, 4), torch.arange(40) % 4, distance="euclidean")
    return f"{found['map@r']:.4f} {found['recall@1']:.4f}"


def corruptions():
    image = torch.arange(3 * 32 * 32).reshape(3, 32, 32).to(torch.uint8)
    changed = [
        corrupt(image, severity, np.random.default_rng(0)).float().mean().item()
        for corrupt in CORRUPTIONS.values()
        for severity in (1, 5)
    ]
    return f"{sum(changed):.0f}"


def class_vectors():
    lengths = {}
    for name in sorted(LOSSES):
        torch.manual_seed(0)
        vectors = class_vectors_of(build_loss(name, 32, 16))
        if vectors is not None:
            lengths[name] = f"{float(vectors.detach().std()):.3f}"
    return hashlib.sha256(json.dumps(lengths).encode()).hexdigest()[:8]


@pytest.mark.parametrize("rule", GIVEN)
def test_a_rule_that_gives_other_values_has_another_number(rule):
    found = {
        "automatic": lambda: automatic(placed=False),
        "automatic_from_means": lambda: automatic(placed=True),
        "metrics": metrics,
        "corruptions": corruptions,
        "class_vectors": class_vectors,
    }[rule]()
    assert (RULES[rule], found) == GIVEN[rule]


def test_the_environment_names_versions():
    assert environment()["packages"]["torch"] == torch.__version__.split("+")[0]
