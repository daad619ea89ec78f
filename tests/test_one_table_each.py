"""Things that people add stand in one table each, and what else names them says the same."""

import ast
import inspect
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands.export import Format
from softwarp.data.downloads import ARCHIVES
from softwarp.data.readers import READERS
from softwarp.data.tables import TABLES
from softwarp.export.formats import FORMATS
from softwarp.export.model_card import DATA
from softwarp.index.remote import DATABASES, Remote
from softwarp.models.backbones import BACKBONES
from softwarp.recipe.schema import DataPart
from softwarp.studies import listed_studies, load_study

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def shown(*words):
    return " ".join(CliRunner(env={"COLUMNS": "200"}).invoke(app, words).output.split())


def test_data_sets():
    """READERS holds data sets, TABLES these and layouts of one's own; recipes name both, and glyphs."""
    assert set(READERS) < set(TABLES)
    assert get_args(DataPart.model_fields["name"].annotation) == ("glyphs", *TABLES)
    assert set(DATA) == {"glyphs", *READERS}  # what model cards say of each
    assert set(ARCHIVES) <= set(READERS)
    told, page = shown("data", "check", "--help"), (DOCS / "data.md").read_text()
    for name in TABLES:
        assert name in told
        assert f"\n| `{name}` | " in page


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones(name):
    """Each says what it reads and returns a map of as many features as it says."""
    backbone = BACKBONES[name]("max+avg").eval()
    side = 112 if name.startswith("iresnet") else 64
    with FakeTensorMode(allow_non_fake_inputs=True):  # shapes alone: the largest would take seconds
        found = backbone(torch.zeros(2, backbone.in_channels, side, side))
    assert found.shape[:2] == (2, backbone.channels)
    assert found.ndim == 4
    assert len(backbone.mean) == len(backbone.std) == backbone.in_channels
    assert isinstance(backbone.classifier, tuple)


def test_export_formats():
    """FORMATS holds single files; a Hugging Face folder is the one that is none."""
    assert {each.value for each in Format} == {*FORMATS, "hf"}
    assert len({each.suffix for each in FORMATS.values()}) == len(FORMATS)
    told, page = shown("export", "--help"), (DOCS / "export.md").read_text()
    for name, each in FORMATS.items():
        assert name in told
        assert each.suffix in told
        assert f"--to {name}" in page


def test_vector_databases():
    """Each does all that an index asks of a database, and the docs name its address."""
    asked = {name for name in vars(Remote) if not name.startswith("_")} | set(Remote.__annotations__)
    assert len(asked) > 5
    pages = "".join(path.read_text() for path in DOCS.glob("*.md"))
    for scheme, database in DATABASES.items():
        declared = {*dir(database), *_assigned(database)}
        assert asked <= declared, (scheme, asked - declared)
    for database in set(DATABASES.values()):
        schemes = [scheme for scheme, each in DATABASES.items() if each is database]
        assert any(f"{scheme}://" in pages for scheme in schemes)


def _assigned(database):
    """Names that its __init__ gives to self."""
    tree = ast.parse(Path(inspect.getfile(database)).read_text())
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes if isinstance(node.ctx, ast.Store)}


def test_studies():
    """A study is a file with PAPER; one that can be run and drawn is not left without it by oversight."""
    listed = {study.name for study in listed_studies()}
    assert len(listed) > 6
    for name in listed:
        module = load_study(name)
        assert all(callable(getattr(module, each)) for each in ("main", "table", "draw")), name
    folder = ROOT / "src" / "softwarp" / "studies"
    whole = {path.stem for path in folder.glob("*.py") if {"main", "draw"} <= _functions(path)}
    assert whole == listed


def _functions(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
