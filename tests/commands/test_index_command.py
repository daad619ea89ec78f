"""`softwarp embed`, `index` and `search` as a user meets them."""

import json
import os
import subprocess
import sys
from datetime import datetime

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from support.pictures import noise, truncated
from support.tiny_index import glyph_files, vector_index
from support.tiny_runs import PHASE, tiny
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.index.index import Index
from softwarp.inference import load
from softwarp.training.train import train_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("run")).folder


def call(*words, **settings):
    runner = CliRunner(env={"COLUMNS": "200"})
    return runner.invoke(app, [str(word) for word in words], catch_exceptions=False, **settings)


def failure(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["softwarp", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, capsys.readouterr().err


@pytest.mark.parametrize("word", ["outlier", "refersh", "duplicate"])
def test_a_misspelt_command_is_not_taken_for_a_run(word, monkeypatch, capsys):
    code, said = failure(monkeypatch, capsys, "index", word, "photos.index")
    assert code == 2
    assert f"No such command '{word}'" in said
    assert "Did you mean" in said


def test_a_run_whose_name_is_nearly_a_command_is_a_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "outlier").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "--output" in failure(monkeypatch, capsys, "index", "outlier", "photos")[1]


def test_a_folder_is_no_query(tmp_path, monkeypatch, capsys):
    index = vector_index(tmp_path / "index", np.eye(3, dtype=np.float32)).folder
    code, said = failure(monkeypatch, capsys, "search", index, tmp_path)
    assert code == 2
    assert f"{tmp_path} is a folder" in said


def test_the_road_from_a_folder_to_an_answer(run, tmp_path):
    images, index = glyph_files(tmp_path / "images"), tmp_path / "index"
    truncated(images / "bad.jpg")
    built = call("index", run, images, "-o", index)
    assert f"{index}: 24 images, 6 classes, euclidean (24 added)" in built.output
    assert "bad.jpg" in built.stderr
    assert f"softwarp search {index}" in built.output  # the next command
    query = images / "U+0042" / "DejaVuSans.png"
    found = call("search", index, query, images / "U+0041" / "DejaVuSans.png", "-k", 3)
    assert found.output.count("DejaVuSans.png") >= 4
    answer = json.loads(call("search", index, query, "-k", 3, "--json").stdout)
    assert answer["distance"] == "euclidean"
    (asked,) = answer["queries"]
    assert [each["rank"] for each in asked["results"]] == [1, 2, 3]
    assert asked["results"][0] | {"distance": 0} == {
        "rank": 1,
        "id": 8,
        "path": "U+0042/DejaVuSans.png",
        "file": str(query),
        "class": "U+0042",
        "distance": 0,
        "same_file": True,
    }
    assert [each["same_file"] for each in asked["results"][1:]] == [False, False]
    filtered = json.loads(call("search", index, query, "--json", "--where", "class=U+0043").stdout)
    assert {each["class"] for each in filtered["queries"][0]["results"]} == {"U+0043"}


def test_the_query_itself_is_told_from_what_is_found(run, tmp_path):
    images, index = glyph_files(tmp_path / "images", classes=2), tmp_path / "index"
    call("index", run, images, "-o", index)
    query = tmp_path / "moved.png"
    query.write_bytes((images / "U+0042" / "DejaVuSans.png").read_bytes())
    shown = call("search", index, query, "--html", tmp_path / "found.html").output
    (line,) = [line for line in shown.splitlines() if "same file as the query" in line]
    assert line.split()[0] == "1"
    assert line.endswith("U+0042/DejaVuSans.png")
    assert (tmp_path / "found.html").read_text().count("same file as the query</b>") == 1
    Image.open(query).rotate(90).save(query)
    assert "same file" not in call("search", index, query).output


def test_nothing_is_shown_beyond_a_distance(run, tmp_path):
    images, index = glyph_files(tmp_path / "images", classes=3), tmp_path / "index"
    call("index", run, images, "-o", index)
    query = images / "U+0042" / "DejaVuSans.png"
    found = json.loads(call("search", index, query, "--json").output)
    away = [each["distance"] for each in found["queries"][0]["results"]]
    limit = (away[3] + away[4]) / 2
    near = json.loads(call("search", index, query, "--within", limit, "--json").output)
    assert near["within"] == limit
    assert [each["distance"] for each in near["queries"][0]["results"]] == away[:4]
    only = "--where", "path=*41/*"
    (nearest,) = json.loads(call("search", index, query, "-k", 1, *only, "--json").output)["queries"][0][
        "results"
    ]
    shown = call("search", index, query, "--within", 0.001, *only).output
    assert f"nothing within 0.001: the nearest is {nearest['distance']:.4f} away" in shown
    assert call("search", index, query, "--within", 0.001, "--where", "path=none").output.endswith(
        "nothing found\n"
    )


def test_names_of_files_are_whole_at_80_columns(run, tmp_path):
    images, index = tmp_path / "images", tmp_path / "index"
    for path in sorted(glyph_files(tmp_path / "glyphs", classes=4).glob("*/*.png")):
        copy = images / f"{path.parent.name} of a long name" / f"{path.stem} (as it was found).png"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    call("index", run, images, "-o", index)
    (query, *_) = sorted(images.glob("*/*.png"))
    names = {str(query), *(path.relative_to(images).as_posix() for path in images.glob("*/*.png"))}
    for words in (
        ("search", index, query),
        ("index", "duplicates", index, "--threshold", 1e9),
        ("index", "outliers", index, "-k", 15),
        ("index", "clusters", index),
        ("index", "classify", index, query),
    ):
        narrow, wide = (call(*words, env={"COLUMNS": each}).output.splitlines() for each in ("80", "300"))
        alone = [line.strip() for line in narrow if line.endswith(".png")]
        assert alone
        assert {*alone} <= names
        assert alone == [line.split("  ")[-1].strip() for line in wide if line.endswith(".png")]
        assert max(len(line) for line in narrow if line.startswith("  ") and line.strip() not in names) <= 80


def test_an_index_is_kept_up_to_date(run, tmp_path):
    images, index = glyph_files(tmp_path / "images", classes=2), tmp_path / "index"
    call("index", "build", run, images, "-o", index)
    assert "(8 unchanged)" in call("index", run, images, "-o", index).output  # resumed: nothing is left
    (images / "U+0041" / "DejaVuSans.png").unlink()
    assert "(1 removed, 7 unchanged)" in call("index", "refresh", index).output
    assert "(4 removed)" in call("index", "remove", index, images / "U+0042").output
    assert "(4 added)" in call("index", "add", index, images / "U+0042").output
    assert len(Index.open(index)) == 7


def test_most_images_are_removed_only_when_told_so(run, tmp_path, monkeypatch, capsys):
    images, index = glyph_files(tmp_path / "images", classes=2), tmp_path / "index"
    call("index", run, images, "-o", index)
    kept = images / "U+0041" / "DejaVuSans.png"
    for path in images.glob("*/*.png"):
        if path != kept:
            path.unlink()
    code, said = failure(monkeypatch, capsys, "index", "refresh", index)
    assert code == 2
    assert "7 of 8" in said
    assert f"softwarp index refresh {index} --remove-missing" in said
    assert "(7 removed, 1 unchanged)" in call("index", "refresh", index, "--remove-missing").output
    kept.unlink()
    said = failure(monkeypatch, capsys, "index", "refresh", index, "--remove-missing")[1]
    assert f"softwarp index remove {index} {images}" in said
    assert "(1 removed)" in call("index", "remove", index, images).output


def test_the_same_build_on_an_emptied_folder_changes_nothing(run, tmp_path, monkeypatch, capsys):
    images, index = glyph_files(tmp_path / "images", classes=1), tmp_path / "index"
    call("index", run, images, "-o", index)
    for path in images.glob("*/*.png"):
        path.unlink()
    for words in (("index", run, images, "-o", index), ("index", "add", index, images)):
        code, said = failure(monkeypatch, capsys, *words)
        assert code == 2
        assert f"no images in {images}" in said
    assert len(Index.open(index)) == 4


def test_info_says_what_an_index_holds(run, tmp_path):
    images, index = glyph_files(tmp_path / "images", classes=6), tmp_path / "index"
    call("index", run, images, "-o", index, "--kind", "hnsw")
    call("index", "remove", index, images / "U+0041" / "DejaVuSans.png")
    about = json.loads(call("index", "info", index, "--json").stdout)
    files = sum(path.stat().st_size for path in index.iterdir())
    assert about | {"changed": ""} == {
        "index": str(index),
        "images": 23,
        "classes": 6,
        "without_class": 0,
        "model": str(run),
        "distance": "euclidean",
        "dimensions": 16,
        "kind": "hnsw",
        "recall@10": 1.0,
        "whole": True,
        "root": str(images),
        "sources": [str(images)],
        "bytes": files,
        "removed_rows": 1,
        "changed": "",
    }
    assert datetime.fromisoformat(about["changed"]).tzinfo is not None
    shown = call("index", "info", index).stdout
    for word in ("23", "6 (", str(run), "euclidean, 16", "hnsw, recall@10 1.000", str(images), "1 removed"):
        assert word in shown


def test_a_damaged_approximate_index_is_noted_and_mended(run, tmp_path):
    images, index = glyph_files(tmp_path / "images"), tmp_path / "index"
    call("index", run, images, "-o", index, "--kind", "hnsw")
    query = images / "U+0042" / "DejaVuSans.png"
    whole = call("search", index, query, "--json")
    (graph,) = index.glob("search-*.faiss")
    graph.write_bytes(graph.read_bytes()[:500])
    found = call("search", index, query, "--json")
    assert found.stdout == whole.stdout
    assert f"softwarp index refresh {index}" in found.stderr
    assert json.loads(call("index", "info", index, "--json").stdout)["whole"] is False
    assert "hnsw: recall@10 1.000" in call("index", "refresh", index).output
    mended = call("search", index, query, "--json")
    assert (mended.stdout, mended.stderr) == (whole.stdout, "")


def test_few_images_are_no_error_for_any_kind(run, tmp_path):
    images, index = glyph_files(tmp_path / "images", classes=2), tmp_path / "index"
    built = call("index", run, images, "-o", index, "--kind", "ivfpq")
    assert "8 images" in built.output
    assert "ivfpq needs more images" in built.stderr
    query = next(images.glob("*/*.png"))
    assert "same file as the query" in call("search", index, query).output


def test_errors_of_the_table_are_one_line(run, tmp_path, monkeypatch, capsys):
    images, index = glyph_files(tmp_path / "images", classes=2), tmp_path / "index"
    call("index", run, images, "-o", index)
    (index / "items.sqlite").write_bytes(bytes((index / "items.sqlite").stat().st_size))
    for words in (("search", index, next(images.glob("*/*.png"))), ("index", "refresh", index)):
        code, said = failure(monkeypatch, capsys, *words)
        assert code == 2
        assert "\n" not in said.strip()
        assert "items.sqlite cannot be read" in said


def test_an_approximate_index_tells_its_recall(run, tmp_path):
    images = glyph_files(tmp_path / "images", classes=4, styles=12)
    shown = call("index", run, images, "-o", tmp_path / "index", "--kind", "hnsw").output
    assert "hnsw: recall@10 1.000" in shown


def test_a_box_is_cut_from_the_upright_image(run, tmp_path):
    images, index = glyph_files(tmp_path / "images", classes=3), tmp_path / "index"
    call("index", run, images, "-o", index)
    glyph = Image.open(images / "U+0043" / "DejaVuSans.png").convert("RGB")
    scene = noise(90, 60)
    scene.paste(glyph, (50, 20))
    stored = scene.transpose(Image.Transpose.ROTATE_90)  # as a camera on its side stores it
    exif = stored.getexif()
    exif[0x0112] = 6
    stored.save(tmp_path / "scene.png", exif=exif)
    words = ("search", index, tmp_path / "scene.png", "--json", "-k", 1)
    (hit,) = json.loads(call(*words, "--box", "50,20,32,32").stdout)["queries"][0]["results"]
    assert hit["path"] == "U+0043/DejaVuSans.png"
    assert hit["distance"] < 1e-3


def test_a_box_that_does_not_fit_is_refused(run, tmp_path, monkeypatch, capsys):
    images, index = glyph_files(tmp_path / "images", classes=2), tmp_path / "index"
    call("index", run, images, "-o", index)
    query = images / "U+0041" / "DejaVuSans.png"
    cases = {
        "20,0,13,5": "20,0,13,5 is not inside the image of 32 x 32",
        "1,2,3": "'1,2,3'",
        "0,0,0,5": "0,0,0,5",
    }
    for box, cause in cases.items():
        code, told = failure(monkeypatch, capsys, "search", index, query, "--box", box)
        assert code == 2
        assert cause in told
    code, told = failure(monkeypatch, capsys, "search", index, query, query, "--box", "0,0,5,5")
    assert "2 were given" in told


def test_a_gallery_is_one_page_and_shows_names_as_text(run, tmp_path):
    images, index = tmp_path / "images", tmp_path / "index"
    (images / "<script>alert(1)").mkdir(parents=True)
    name = os.fsdecode(b"a\n\xff<b>.png")
    Image.fromarray(np.full((32, 32), 77, np.uint8)).save(images / "<script>alert(1)" / name)
    call("index", run, images, "-o", index)
    query = images / "<script>alert(1)" / name
    shown = call("search", index, query, "--html", tmp_path / "found.html")
    assert "\\xff" not in shown.output
    assert "\\udcff" in shown.output
    page = (tmp_path / "found.html").read_text()
    assert "<script" not in page
    assert "<b>.png" not in page
    assert page.count("data:image/jpeg;base64,") == 2
    assert "http" not in page


def test_embed_writes_names_digests_and_classes(run, tmp_path):
    images, out = glyph_files(tmp_path / "images"), tmp_path / "vectors.safetensors"
    truncated(images / "bad.jpg")
    shown = call("embed", run, images, "-o", out)
    assert "embedded 24 images" in shown.output
    assert "bad.jpg" in shown.stderr
    assert f"softwarp evaluate {out} --distance euclidean" in shown.output
    with safe_open(out, "np") as file:
        names = bytes(file.get_tensor("names")).split(b"\0")[:-1]
        vectors, labels = file.get_tensor("embeddings"), file.get_tensor("labels")
        classes, digests = bytes(file.get_tensor("classes")).split(b"\0")[:-1], file.get_tensor("digests")
        assert file.metadata() == {"model": str(run), "distance": "euclidean", "root": str(images)}
    files = [images / os.fsdecode(name) for name in names]
    assert files == sorted(images.glob("*/*.png"))
    np.testing.assert_allclose(vectors, load(run).embed(files).numpy(), atol=1e-5)
    assert [classes[label].decode() for label in labels] == [path.parent.name for path in files]
    assert len({bytes(each) for each in digests}) == len({path.read_bytes() for path in files})
    assert not out.with_name(f"{out.name}.part").exists()
    measured = call("evaluate", out, "--json", "--bootstrap", 0)
    assert json.loads(measured.stdout)["classes"] == 6


def test_evaluate_matches_the_classes_of_two_embedded_folders_by_name(run, tmp_path):
    """A gallery with classes before, among and after those of the queries: `embed` numbers each file anew."""
    queries, gallery = tmp_path / "queries", glyph_files(tmp_path / "gallery", classes=6)
    for path in sorted(gallery.glob("U+004[24]/*.png")):  # B and D
        (queries / path.parent.name).mkdir(parents=True, exist_ok=True)
        (queries / path.parent.name / path.name).write_bytes(path.read_bytes())
    for images in (queries, gallery):
        call("embed", run, images, "-o", images.with_suffix(".safetensors"))
    files = [images.with_suffix(".safetensors") for images in (queries, gallery)]
    shown = call("evaluate", files[0], "--gallery", files[1], "--json")
    assert json.loads(shown.stdout)["metrics"]["recall@1"] == 1.0  # each finds its copy
    turned = json.loads(call("evaluate", files[1], "--gallery", files[0], "--json").stdout)["metrics"]
    assert turned["queries_without_positives"] == 16


@pytest.mark.parametrize("separator", [b"\0", b"\n"])
def test_embed_reads_a_list_from_stdin(run, tmp_path, separator):
    images, out = glyph_files(tmp_path / "images", classes=1), tmp_path / "vectors.safetensors"
    odd = images / os.fsdecode(b"odd \xff" + (b"\n" if separator == b"\0" else b"") + b".png")
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(odd)
    listed = [*sorted(images.glob("*/*.png")), odd, images / "gone.png"]
    shown = call("embed", run, "-", "-o", out, input=separator.join(map(os.fsencode, listed)))
    assert "embedded 5 images" in shown.output
    assert "gone.png" in shown.stderr
    assert "softwarp index" in shown.output  # an image without a class: nothing to evaluate
    with safe_open(out, "np") as file:
        names = bytes(file.get_tensor("names")).split(b"\0")[:-1]
        assert "labels" not in file.keys()  # noqa: SIM118
    assert names[-1] == os.fsencode(odd.name)


def test_embed_needs_an_image_that_can_be_read(run, tmp_path, monkeypatch, capsys):
    truncated(tmp_path / "bad.jpg")
    code, told = failure(
        monkeypatch, capsys, "embed", run, tmp_path / "bad.jpg", "-o", tmp_path / "v.safetensors"
    )
    assert code == 2
    assert "bad.jpg: " in told.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jpg"]


def test_embed_keeps_what_is_there(run, tmp_path, monkeypatch, capsys):
    images, out = glyph_files(tmp_path / "images", classes=1), tmp_path / "vectors.safetensors"
    out.write_bytes(b"precious")
    assert "--fresh" in failure(monkeypatch, capsys, "embed", run, images, "-o", out)[1]
    assert out.read_bytes() == b"precious"
    assert call("embed", run, images, "-o", out, "--fresh").exit_code == 0
    assert ".safetensors" in failure(monkeypatch, capsys, "embed", run, images, "-o", tmp_path / "x.npy")[1]


WRONG = """
import sys
from softwarp.cli import main

for line in sys.stdin.read().splitlines():
    sys.argv = ["softwarp", *line.split()]
    try:
        main()
    except SystemExit as stop:
        print(line, stop.code, "torch" in sys.modules)
"""


def test_wrong_words_are_refused_before_torch_is_loaded(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "note.jpg").write_text("no image")
    noise(8, 8).save(tmp_path / "image.png")
    vector_index(tmp_path / "index", np.eye(4, dtype=np.float32))
    lines = {
        "search nothing note.jpg": "nothing is not an index",
        "search index gone.jpg": "gone.jpg: the file is missing",
        "search index note.jpg": "note.jpg: not an image",
        "search index note.jpg --where wren": "'wren'",
        "search index note.jpg --box 1,2": "'1,2'",
        "search index note.jpg --within -1": "--within",
        "search index note.jpg --within nan": "--within",
        "search mysql://host/photos note.jpg": "mysql://",
        "index efficientnet_lite0 gone -o new": "gone does not exist",
        "index efficientnet_lite0 photos -o new": "no images in photos",
        "index efficientnet_lite0 note.jpg -o new --kind tree": "'tree'",
        "index efficientnet_lite0 note.jpg -o note.jpg": "note.jpg is a file",
        "index add nothing note.jpg": "nothing is not an index",
        "index add index gone": "gone does not exist",
        "index remove index gone": "index has none of these images",
        "index refresh nothing": "nothing is not an index",
        "index push nothing --to qdrant://host/photos": "nothing is not an index",
        "index push index --to mysql://host/photos": "mysql://",
        "index duplicates photos": "softwarp index RUN photos -o photos.index",
        "index outliers index": "0 classes",
        "index clusters nothing": "nothing is not an index",
        "index classify nothing note.jpg": "nothing is not an index",
        "index classify index note.jpg": "note.jpg: not an image",
        "index classify index image.png": "index has no classes",
        "index info nothing": "nothing is not an index",
        "index classify index note.jpg --false-acceptance 3": "--false-acceptance",
        "serve nothing": "nothing is not an index",
        "serve index --token short": "16",
        "embed efficientnet_lite0 gone -o new.safetensors": "gone does not exist",
        "embed efficientnet_lite0 photos -o new.safetensors": "no images in photos",
    }
    done = subprocess.run(
        [sys.executable, "-c", WRONG],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.stdout.splitlines() == [f"{line} 2 False" for line in lines]
    told = [line for line in done.stderr.splitlines() if line.lower().startswith("error: ")]
    assert len(told) == len(lines)
    for line, cause in zip(told, lines.values(), strict=True):
        assert cause in line
    assert not (tmp_path / "new").exists()
    assert "skip_broken" not in done.stderr  # which is a word of Python's


def test_a_stopped_build_says_how_to_resume(run, tmp_path, monkeypatch):
    images, index = glyph_files(tmp_path / "images", classes=2), tmp_path / "index"
    monkeypatch.setattr("sys.argv", ["softwarp", "index", "RUN", "-o", "INDEX"])

    def stop(*inputs, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr("softwarp.index.updates.embed_into", stop)
    stopped = call("index", run, images, "-o", index)
    assert stopped.exit_code == 130
    assert "To resume: softwarp index RUN -o INDEX" in stopped.stderr
