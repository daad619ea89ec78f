"""Which code made a result: its commit and rules, whether its files were changed, versions and machine."""

import json
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

# A rule is something whose change moves results although command, seed and recipe stay the same. Raise its
# number with the change: tables of older results are refused (tests/tools/test_freshness.py) until they are
# made again.
RULES = {
    "automatic": 1,  # scale and alpha that the losses measure, from random proxies
    "automatic_from_means": 5,  # the same where proxies start at class means
    "class_vectors": 2,  # how losses draw the vectors that they learn
    "corruptions": 1,  # strengths of data/corruptions.py
    "metrics": 1,  # definitions in docs/metrics.md
    "own_images": 3,  # how `softwarp train --data` plans, chooses and trains
    "recipe": 1,  # what keys of a recipe mean
}
OF_STUDIES = tuple(name for name in RULES if name != "own_images")  # all of these train by recipes
OF_RUNS = tuple(name for name in OF_STUDIES if name != "corruptions")  # those that a training depends on
PACKAGES = (
    "softwarp",
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "faiss-cpu",
    "scikit-learn",
    "pillow",
    "matplotlib",
)
TIMEOUT = 10.0  # seconds for git, on a slow file system


def environment() -> dict[str, Any]:
    """Return what else a result depends on: code, versions, machine and threads."""
    return {
        "code": code(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def code() -> dict[str, Any]:
    """Return commit, whether the package's files are as in that commit, and the rules.

    Both are None for a package that was installed from an archive: then only its version is known. Looked up
    once for a process, which runs the code that it loaded.
    """
    return {**(_from_git(Path(__file__).parents[1]) or _from_install()), "rules": RULES}


def _from_git(folder: Path) -> dict[str, Any] | None:
    """What git says of the package's folder; None if it is not under version control."""
    if not _git(folder, "ls-files", "__init__.py"):  # an environment may lie inside somebody's repository
        return None
    changes = _git(folder, "status", "-s", ".")  # None if that took too long
    return {"commit": _git(folder, "rev-parse", "HEAD"), "clean": None if changes is None else not changes}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _from_install() -> dict[str, Any]:
    """The commit that pip notes of `pip install git+https://...`."""
    try:
        note = distribution("softwarp").read_text("direct_url.json")
    except PackageNotFoundError:
        note = None
    commit = json.loads(note or "{}").get("vcs_info", {}).get("commit_id")
    return {"commit": commit, "clean": None if commit is None else True}


def outdated(rules: Mapping[str, int], needed: tuple[str, ...]) -> list[str]:
    """Return the rules among those needed that a result predates.

    >>> outdated({"metrics": 0, "recipe": RULES["recipe"]}, ("metrics", "recipe"))
    ['metrics']
    """
    return [name for name in needed if rules.get(name) != RULES[name]]


def check_rules(folder: Path, rules: Mapping[str, int], needed: tuple[str, ...] = OF_STUDIES) -> None:
    """Raise a ValueError if what is in a folder was begun under rules that have changed since.

    To go on would make one result under two rules.
    """
    if changed := outdated(rules, needed):
        raise ValueError(
            f"{folder} was begun before a change of {', '.join(changed)} (CHANGELOG.md) and would mix two "
            "rules; choose another folder, or finish it with the version that began it"
        )
