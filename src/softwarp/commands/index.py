"""`softwarp index`: builds an index of images and keeps it up to date."""

import shlex
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from softwarp.commands import index_insights
from softwarp.commands.index_progress import note_damage, opened, report_broken, updating
from softwarp.commands.options import Backbone, Depth, IndexFolder, model_and_images
from softwarp.commands.progress import note, say

if TYPE_CHECKING:
    from softwarp.index.index import Index


class _BuildByDefault(TyperGroup):
    """`softwarp index RUN FOLDER` is `softwarp index build RUN FOLDER`."""

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        if words and words[0] not in {*self.commands, "-h", "--help"} and not self._misspelt(words[0]):
            words = ["build", *words]
        return super().parse_args(context, words)

    def _misspelt(self, word: str) -> bool:
        """Whether a word is nearly a command, and not a run's folder: then it is refused by its name."""
        return bool(get_close_matches(word, self.commands, n=1, cutoff=0.75)) and not Path(word).exists()


app = typer.Typer(
    cls=_BuildByDefault,
    help="Build an index: softwarp index RUN FOLDER -o INDEX. Or keep one up to date.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

UNKNOWN = 10  # paths that are named

Paths = Annotated[list[Path], typer.Argument(help="Images, folders of images, CSV files (path,label).")]


@app.command()
def build(
    model: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, efficientnet_lite0 or any timm name.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the index.")],
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER", help="A folder of images, a CSV file, or files.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(help="flat (exact), hnsw, ivfpq, or auto: flat up to 1 GiB of vectors, then by memory."),
    ] = "auto",
    depth: Depth = None,
    backbone: Backbone = None,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Take a network as it is; do not calibrate it on class folders.")
    ] = False,
    to: Annotated[str | None, typer.Option(help="Also push it: postgresql://... or qdrant://...")] = None,
) -> None:
    """Embed the images of a folder and make them searchable.

    \b
    softwarp index runs/birds photos -o photos.index
    softwarp index efficientnet_lite0 photos -o photos.index      no training needed
    softwarp index --backbone auto photos -o photos.index         the network that suits the classes best

    The same command resumes after a stop or a crash.
    """
    with updating(f"what is embedded is kept in {output}") as on_event:
        from softwarp.index.index import Index

        named, places = model_and_images(model, images or [], backbone)
        index = Index.build(
            named,
            places[0] if len(places) == 1 else places,
            output,
            kind=kind,
            depth=depth,
            frozen=frozen,
            on_event=on_event,
        )
    _report(index)
    if to is not None:
        push(output, to)


@app.command()
def push(
    index: IndexFolder,
    to: Annotated[str, typer.Option(help="postgresql://HOST/DATABASE?table=NAME or qdrant://HOST:6333/NAME")],
    remove_missing: Annotated[
        bool,
        typer.Option(
            "--remove-missing", help="Go on even if it has more than twice the images of the index."
        ),
    ] = False,
) -> None:
    """Mirror an index in a vector database; the same command resumes, and sends only what has changed.

    \b
    softwarp index push photos.index --to postgresql://user@host/photos
    softwarp search postgresql://user@host/photos query.jpg
    """
    with opened(index, "what has arrived stays") as (whole, on_event):
        from softwarp.index.remote import push as push_index

        done = push_index(whole, to, remove_missing=remove_missing, on_event=on_event)
    typer.echo(f"{done.address}: {_counts(done, 'sent', 'removed', 'unchanged')}")
    typer.echo("search it: softwarp search URL QUERY.jpg")


@app.command()
def add(index: IndexFolder, paths: Paths) -> None:
    """Add images; those that are in the index with the same content are left alone."""
    with opened(index, f"what is embedded is kept in {index}") as (whole, on_event):
        whole.add(paths, on_event=on_event)
    _report(whole)


@app.command()
def remove(index: IndexFolder, paths: Paths) -> None:
    """Remove images, or all of a folder or CSV file; refresh does not bring them back, add does."""
    from softwarp.index.index import Index

    whole = Index.open(index)
    if not whole.remove(paths).removed:
        raise ValueError(f"{index} has none of these images; name files or folders below {whole.root}")
    _report(whole)


@app.command()
def refresh(
    index: IndexFolder,
    remove_missing: Annotated[
        bool,
        typer.Option("--remove-missing", help="Go on even if more than half of a folder's images are gone."),
    ] = False,
) -> None:
    """Bring an index up to date with its folders and CSV files: new, changed and vanished images."""
    with opened(index, f"what is embedded is kept in {index}") as (whole, on_event):
        whole.refresh(remove_missing=remove_missing, on_event=on_event)
    _report(whole)


@app.command()
def info(
    index: IndexFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Say what an index holds: images, classes, model, kind, folders, size, when it was last changed."""
    from softwarp.index.index import Index
    from softwarp.index.info import facts_of

    whole = Index.open(index)
    about = facts_of(whole)
    if as_json:
        import json

        typer.echo(json.dumps(about, indent=2))
    else:
        for name, value in _told(about).items():
            say(f"{name:12}{value}".rstrip())
    note_damage(whole)


@app.command()
def apply(
    index: IndexFolder,
    labels: Annotated[
        Path | None,
        typer.Argument(
            metavar="LABELS", help="A CSV file with path,label. Default: the corrections beside the index."
        ),
    ] = None,
) -> None:
    """Correct labels by a CSV file, or as made on the page of `softwarp serve`; nothing is embedded again.

    \b
    softwarp index apply photos.index                    photos.index.labels.csv, which serve writes
    softwarp index apply photos.index labels.csv         columns path and label

    Refresh leaves corrected labels as they are. The same command again changes nothing.
    """
    from softwarp.index.corrections import apply, beside
    from softwarp.index.index import Index

    whole = Index.open(index)
    file = labels or beside(index)
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist; correct labels with `softwarp serve {index}`")
    done = apply(whole, file)
    for path in done.unknown[:UNKNOWN]:
        note(f"not in the index: {path}")
    if len(done.unknown) > UNKNOWN:
        note(f"... and {len(done.unknown) - UNKNOWN:,} more")
    if done.unknown and not done.changed + done.unchanged:
        raise ValueError(f"{index} has none of the {len(done.unknown):,} images of {file}")
    counts = f"labels changed: {done.changed:,}, right already: {done.unchanged:,}"
    typer.echo(f"{index}: {counts}" + f", not in the index: {len(done.unknown):,}" * bool(done.unknown))
    typer.echo(f"what neighbours say now: softwarp index outliers {index}")


for insight in ("duplicates", "outliers", "classify", "clusters"):
    app.command(insight)(getattr(index_insights, insight))


def _told(about: dict[str, Any]) -> dict[str, str]:
    """What `facts_of` returns, in words."""
    size = about["bytes"] / 2**20
    return {
        "index": about["index"],
        "images": f"{about['images']:,} ({about['removed_rows']:,} removed rows still on disk)",
        "classes": f"{about['classes']:,} ({about['without_class']:,} images without one)",
        "model": about["model"] or "none: vectors from elsewhere",
        "distance": f"{about['distance']}, {about['dimensions']:,} dimensions",
        "kind": f"{about['kind']}, recall@10 {about['recall@10']:.3f}",
        "root": about["root"],
        "sources": ", ".join(about["sources"]) or "none: images were added by name",
        "size": f"{size:,.1f} MiB",
        "changed": about["changed"],
    }


def _counts(done: Any, *names: str) -> str:
    counts = {name: getattr(done, name) for name in names}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"


def _report(index: "Index") -> None:
    changes = index.changes

    report_broken(changes)
    done = _counts(changes, "added", "changed", "removed", "unchanged")
    classes = len({item.label for item in index.items} - {None})
    typer.echo(f"{index.folder}: {len(index):,} images, {classes:,} classes, {index.distance} ({done})")
    wanted = index.store.settings["wanted"]
    if index.kind == "flat" and wanted not in ("auto", "flat"):
        note(f"{wanted} needs more images; until then they are searched exactly")
    if index.kind != "flat":
        effort = f"effort {index.store.settings['effort']}"
        typer.echo(f"{index.kind}: recall@10 {index.recall:.3f} against exact search ({effort})")
        if index.recall < 0.95:
            note("recall is below 0.95; for exact answers build it with --kind flat")
    place = shlex.quote(str(index.folder))
    say(f"search it: softwarp search {place} QUERY.jpg\nin the browser: softwarp serve {place}")
