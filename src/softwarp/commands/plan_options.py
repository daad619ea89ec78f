"""Options that `tune`, `benchmark` and `reality-check` share."""

from typing import Annotated

import typer

BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Trials and epochs that fit into this time for one worker, like 10m or 2h: fewer trials first, "
        "down to 5 unless you give their number, then fewer epochs.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
StorageOption = Annotated[
    str | None, typer.Option("--storage", help="Database of the searches, like postgresql://USER@HOST/NAME.")
]
