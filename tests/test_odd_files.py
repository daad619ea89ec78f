"""Sixty odd files in one folder: every command ends, and every file is used or named."""

import faulthandler
import os
import re
import subprocess
import sys
import warnings

import pytest
from support.odd_files import odd_folder
from support.pictures import pictures
from support.tiny_runs import PHASE, tiny
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands.recipes import recipe_of_words
from softwarp.files import printable
from softwarp.index.index import Index
from softwarp.inference import load
from softwarp.training.train import train_recipe

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="pipes, devices, names of any bytes"),
    pytest.mark.filterwarnings("ignore:Corrupt EXIF"),  # Pillow's own; the pixels are good
]

NOT_TEXT = os.fsdecode(b"not utf-8 \xff.jpg")
QUICK = [
    "model.backbone=test_efficientnet.r160_in1k", "model.pretrained=false", "model.embedding_size=8",
    "data.crop=32", "data.resize=32", "data.workers=0", "evaluation.avg_dtp_images=0", "phases.0.epochs=1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def ends():
    """What waits for a pipe would wait for ever: it is ended, with the place where it waits."""
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("run")).folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Five good classes and one of odd files; and which of these are good, and which are broken."""
    root = tmp_path_factory.mktemp("images")
    pictures(
        root, *(f"{name}/{number}.jpg" for name in ("ant", "bee", "cat", "dog", "elk") for number in range(3))
    )
    good, broken = odd_folder(root / "odd")
    assert len(good) + len(broken) > 60
    return root, good, broken


def invoke(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def check_notes(text):
    """Every kind of file that is no image is counted."""
    assert "names that start with a dot, left out: 3" in text
    assert re.search(r"other files, ignored: 7 \(.*\.txt", text)
    assert "__MACOSX" in text
    assert "links to folders, not followed: 1" in text


def test_check_names_every_file_that_training_would_not_use(images):
    root, good, broken = images
    answer = subprocess.run(
        [sys.executable, "-m", "softwarp", "data", "check", root, "--deep"],
        check=False, capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "500"},
    )  # fmt: skip
    assert answer.returncode == 1, answer.stderr
    text = answer.stdout
    there = {path.rpartition("/")[2] for path in _broken_paths(text)}
    missing = {"dangling.jpg", "itself.jpg"}  # in a line of their own, too
    assert there == {printable(name).replace("\n", "\\n") for name in broken}
    assert missing <= there
    assert f"{15 + len(good) + len(broken)} images, 6 classes" in text
    assert "names that are not UTF-8, left out: 1" in text
    assert "a folder.jpg" in text
    check_notes(text)


def _broken_paths(text):
    """The paths in the lines that say what is broken, before the cause."""
    found = re.findall(r"^broken: (.*)$", text, re.MULTILINE)
    return [re.match(r"(.*?\.(?:jpg|png|heic|avif|tif)): ", line)[1] for line in found]


@pytest.mark.parametrize("command", ["embed", "index"])
def test_embed_and_index_use_or_name_every_file(images, run, tmp_path, command):
    root, good, broken = images
    out = tmp_path / ("vectors.safetensors" if command == "embed" else "index")
    answer = invoke(command, run, root, "-o", out)
    assert answer.exit_code == 0, answer.output
    for name in broken:
        assert f"odd/{name}: " in answer.output, name
    assert f"files that cannot be read: {len(broken)}" in answer.output
    check_notes(answer.output)
    count = 15 + len(good) + 1
    if command == "embed":
        assert f"embedded {count} images" in answer.output
    else:
        used = {item.path for item in Index.open(out).items if item.label == "odd"}
        assert used == {f"odd/{name}" for name in {*good, NOT_TEXT}}
        again = Index.open(out).refresh()
        assert (again.unchanged, len(again.broken), again.removed) == (count, len(broken), 0)


def test_train_uses_or_names_every_file(images, tmp_path):
    root, good, broken = images
    _, recipe = recipe_of_words(QUICK, root, "test")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = train_recipe(recipe, tmp_path / "run").result()
    text = "\n".join(str(each.message) for each in told)
    check_notes(text)
    assert "names that are not UTF-8, left out: 1" in text
    bad = {*result.broken_images, *result.left_out}
    assert bad == {f"odd/{name}" for name in broken}
    assert result.images.train + result.images.evaluated == 15 + len(good) + len(broken)


def test_broken_queries_are_named_at_once(images, run, tmp_path):
    root, good, broken = images
    index = tmp_path / "index"
    assert invoke("index", run, root / "ant", "-o", index).exit_code == 0
    for name in sorted(broken):
        result = CliRunner().invoke(app, ["search", str(index), str(root / "odd" / name)])
        assert f"odd/{name}: " in str(result.exception), name
        result = CliRunner().invoke(app, ["index", "classify", str(index), str(root / "odd" / name)])
        assert f"odd/{name}: " in str(result.exception), name
    found = invoke("search", index, *(root / "odd" / name for name in sorted(good)), "--json")
    assert found.exit_code == 0, found.output
    assert found.output.count('"query"') == len(good)


def test_loaded_models_name_broken_paths(images, run):
    root, _, broken = images
    model = load(run)
    for name in sorted(broken):
        with pytest.raises(ValueError, match=re.escape(f"odd/{name}: ")):
            model.embed(root / "odd" / name)
    paths = [root / "odd" / name for name in sorted(broken)]
    assert model.embed(paths, skip_broken=True).isnan().all()
