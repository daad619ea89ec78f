"""`softwarp index duplicates`, `outliers`, `classify` and `clusters` as a user meets them."""

import csv
import os

import pytest
from PIL import Image
from support.tiny_index import glyph_files
from support.tiny_runs import PHASE, tiny
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.index.index import Index
from softwarp.training.train import train_recipe


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Glyphs of six characters; an A is also there as a B under an odd name, and one image has no class."""
    folder = tmp_path_factory.mktemp("insights")
    run = train_recipe(tiny(phases=[PHASE]), folder / "run").folder
    images = glyph_files(folder / "images", styles=12)
    glyph = Image.open(images / "U+0041" / "DejaVuSans.png")
    glyph.save(images / "U+0042" / os.fsdecode(b"odd \xff<b>.png"))
    Image.new("L", (32, 32), 77).save(images / "loose.png")
    return Index.build(run, images, folder / "index")


def call(*words):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["index", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def rows(path):
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        return list(csv.DictReader(file))


def page(path):
    text = path.read_text()
    assert "<b>.png" not in text
    assert "http" not in text
    return text


def test_duplicates_as_table_file_and_page(index, tmp_path):
    shown = call(
        "duplicates",
        index.folder,
        "--threshold",
        1e-3,
        "--csv",
        tmp_path / "d.csv",
        "--html",
        tmp_path / "d.html",
    )
    pair = [
        row
        for row in rows(tmp_path / "d.csv")
        if "odd" in row["image"] or row["image"] == "U+0041/DejaVuSans.png"
    ]
    assert [row["class"] for row in pair] == ["U+0041", "U+0042"]
    assert len({row["group"] for row in pair}) == 1
    assert pair[1]["image"] == os.fsdecode(b"U+0042/odd \xff<b>.png")
    assert "euclidean distance up to 0.001" in shown
    assert "\\udcff" in shown
    assert page(tmp_path / "d.html").count("data:image/jpeg") == len(rows(tmp_path / "d.csv"))


def test_outliers_name_the_class_of_the_neighbours(index, tmp_path):
    shown = call(
        "outliers", index.folder, "-k", 5, "--csv", tmp_path / "o.csv", "--html", tmp_path / "o.html"
    )
    found = rows(tmp_path / "o.csv")
    (odd,) = [row for row in found if "odd" in row["image"]]
    assert (odd["class"], odd["suggested"]) == ("U+0042", "U+0041")
    assert not [row for row in found if row["image"] == "loose.png"]
    assert f"{len(found)} of {len(index)} images" in shown
    scores = [float(row["score"]) for row in found]
    assert scores == sorted(scores, reverse=True)
    assert page(tmp_path / "o.html").count("data:image/jpeg") == 6 * len(found)


def test_a_long_list_is_cut_in_the_terminal_and_says_so(index, monkeypatch, tmp_path):
    monkeypatch.setattr("softwarp.commands.index_insights.SHOWN", 2)
    shown = call("outliers", index.folder, "-k", 5, "--csv", tmp_path / "o.csv")
    count = len(rows(tmp_path / "o.csv"))
    assert count > 2
    assert shown.count(".png") == 2
    assert f"... and {count - 2} rows more: --csv FILE writes them all" in shown
    assert "surest first" in shown


def test_clusters_tell_how_well_they_agree_with_labels(index, tmp_path):
    shown = call(
        "clusters", index.folder, "--fineness", 2, "--csv", tmp_path / "c.csv", "--html", tmp_path / "c.html"
    )
    found = rows(tmp_path / "c.csv")
    assert sorted(int(row["id"]) for row in found) == index.ids.tolist()
    groups = {row["group"] for row in found}
    assert f"{len(groups)} groups of {len(index)} images; NMI with the labels 0." in shown
    assert page(tmp_path / "c.html").count("<section>") == len(groups)


def test_classify_tells_its_errors(index, tmp_path):
    query = index.root / "U+0043" / "DejaVuSans.png"
    shown = call(
        "classify",
        index.folder,
        query,
        index.root / "loose.png",
        "--false-acceptance",
        0.3,
        "--csv",
        tmp_path / "k.csv",
        "--html",
        tmp_path / "k.html",
    )
    first, second = rows(tmp_path / "k.csv")
    assert (first["class"], first["image"]) == ("U+0043", str(query))
    assert first["best guess"] == "U+0043"
    assert 0 < float(first["confidence"]) < 1
    assert second["image"].endswith("loose.png")
    assert float(first["distance"]) > 0  # no image votes for itself
    assert "2 of 2" in shown
    for words in ("of unknown classes accepted", "of known ones rejected", "given another class"):
        assert words in shown
    assert page(tmp_path / "k.html").count("<section>") == 2
    assert "--html" not in shown
    assert "--html" in call("classify", index.folder, query)


@pytest.mark.parametrize(
    ("classes", "styles", "said"), [(3, 1, "no class has two"), (1, 6, "no other class"), (2, 2, "rejected")]
)
def test_classify_answers_on_small_indexes(index, tmp_path, classes, styles, said):
    images = glyph_files(tmp_path / "images", classes=classes, styles=styles)
    small = Index.build(index.model_name, images, tmp_path / "small")
    shown = call("classify", small.folder, index.root / "U+0041" / "DejaVuSans.png")
    assert said in shown
    assert "U+0041" in shown


def test_classify_needs_a_class(index, tmp_path, monkeypatch, capsys):
    for path in glyph_files(tmp_path / "glyphs", classes=1).glob("*/*.png"):
        (tmp_path / "loose").mkdir(exist_ok=True)
        path.rename(tmp_path / "loose" / path.name)
    bare = Index.build(index.model_name, tmp_path / "loose", tmp_path / "bare")
    words = ["softwarp", "index", "classify", str(bare.folder), str(tmp_path / "loose" / "DejaVuSans.png")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "has no classes" in capsys.readouterr().err
