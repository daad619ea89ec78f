"""Writes docs/cli.md: every command with its arguments and options, from the help texts. make docs"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from softwarp.cli import app
from softwarp.commands.study import command_of
from softwarp.files import write_text
from softwarp.studies import listed_studies, load_study

PAGE = Path("docs/cli.md")
HEAD = """# Command line

```
pip install 'softwarp[weights,serve,export,postgres,qdrant]'  # all that any line on this page needs
softwarp --help                                               # the commands
softwarp train --help                                         # one of them
softwarp --install-completion                                 # complete commands with the tab key
```

`make docs` writes this page from the help texts. Wherever a command takes KEY=VALUE, the keys are those of
[a recipe](recipe_keys.md). Commands end with exit code 0; with 2, and one line on what to change, if
something that you gave is wrong; and with 130 after Ctrl-C. Long work resumes when you give the same command
again.
"""
VALUES = {"int": "N", "float": "X", "path": "PATH"}  # what an option takes, by its type


def main() -> None:
    """Write the page."""
    write_text(PAGE, page())


def page() -> str:
    """Return the page: a section per command, then one per study."""
    return HEAD + "".join(section(name, command) for name, command in [*commands(), *studies()])


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with the words that call it."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield f"softwarp {name}", command
        for word, inner in getattr(command, "commands", {}).items():
            yield f"softwarp {name} {word}", inner


def studies() -> Iterator[tuple[str, Any]]:
    """Yield each study with the words that call it; its options are known to its file alone."""
    for each in listed_studies():
        module = load_study(each.name)
        own = typer.Typer(add_completion=False, rich_markup_mode=None)
        own.command(help=inspect.getdoc(module.main))(command_of(module))
        yield f"softwarp study {each.name}", typer.main.get_command(own)


def section(name: str, command: Any) -> str:
    """Return what a command does, how it is called, and a row per argument and option."""
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [each.get_help_record(context) for each in command.params if each.name != "help"]
    rows = [f"| {_code(_words(record[0]))} | {_cell(record[1])} |\n" for record in records if record]
    table = f"\n| | |\n|---|---|\n{''.join(rows)}" if rows else ""
    return f"\n## {name}\n\n```\n{usage}\n```\n\n{about(command.help or '')}{table}"


def about(text: str) -> str:
    """Return a help text in Markdown; a paragraph that keeps its lines is a block of commands.

    >>> print(about("Do it.\\n\\n\\b\\nsoftwarp do it\\n\\nAnd again."))
    Do it.
    <BLANKLINE>
    ```
    softwarp do it
    ```
    <BLANKLINE>
    And again.
    <BLANKLINE>
    """
    parts = [
        f"```\n{part.removeprefix(chr(8)).strip(chr(10))}\n```" if part.startswith("\b") else _cell(part)
        for part in inspect.cleandoc(text).split("\n\n")
    ]
    return "\n\n".join(parts) + "\n"


def _words(help_record: str) -> str:
    """How an argument or option is written: `--trials <int range>` takes N."""

    def value(kind: re.Match[str]) -> str:
        return VALUES.get(re.split(r"\W", kind[1])[0], "TEXT")

    return (
        re.sub(r"<(.*)>", value, help_record) if help_record.startswith("-") else help_record.split(" <")[0]
    )


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


if __name__ == "__main__":
    main()
