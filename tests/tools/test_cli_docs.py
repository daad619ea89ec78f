"""docs/cli.md: every command and option has its place, and the page is made from the help texts."""

import re
from pathlib import Path

from cli_docs import about, commands, page, section, studies
from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.studies import listed_studies

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_the_page_is_made_from_the_help_texts():
    assert page() == PAGE, "run make docs"


def test_every_command_and_study_has_a_section():
    shown = CliRunner().invoke(app, ["--help"]).output.partition("Commands:")[2]
    words = re.findall(r"^  ([a-z-]+) ", shown, flags=re.MULTILINE)
    assert len(words) > 15
    names = [name for name, _ in [*commands(), *studies()]]
    assert len(names) == len(set(names))
    assert {f"softwarp {word}" for word in words} <= set(names)
    assert {f"softwarp study {study.name}" for study in listed_studies()} <= set(names)
    assert re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE) == names


def test_every_option_of_a_command_has_a_row():
    shown = CliRunner().invoke(app, ["train", "--help"]).output
    options = set(re.findall(r"--[a-z][a-z-]+", shown.partition("Options:")[2])) - {"--help"}
    assert len(options) > 7
    rows = PAGE.partition("\n## softwarp train\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `[^|]*?(--[a-z-]+)", rows, flags=re.MULTILINE)) == options


def test_what_a_command_takes_is_named():
    small = Typer(add_completion=False, rich_markup_mode=None)

    @small.command()
    def turn(angle: float, steps: int = 3, back: bool = False) -> None:
        """Turn by <angle>."""

    text = section("turn", get_command(small))
    assert "Turn by \\<angle>." in text
    assert "| `--steps N` | [default: 3] |" in text
    assert "| `--back / --no-back` |" in text
    assert "\n| `angle` |" in text


def test_commands_in_a_help_text_stay_on_their_lines():
    assert about("One.\n\n\b\nsoftwarp a\nsoftwarp b\n\nTwo\nlines.") == (
        "One.\n\n```\nsoftwarp a\nsoftwarp b\n```\n\nTwo lines.\n"
    )
