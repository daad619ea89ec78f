"""`softwarp data check` on folders as people have them: what will training do with this?"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.layouts import write
from support.pictures import noise, pictures, two_broken
from typer.testing import CliRunner

from softwarp import cli
from softwarp.commands.data import app
from softwarp.commands.recipes import recipe_of_words
from softwarp.commands.train import index_command
from softwarp.data.decode import reads_heic
from softwarp.training.own_recipe import settings_for


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(root, *options):
    """The exit code and, with single spaces, all that is printed on the output stream."""
    result = run("check", root, *options)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.stdout.split())


def classes(*names, images=3):
    return [f"{name}/{k}.jpg" for name in names for k in range(images)]


def test_a_good_folder(tmp_path):
    code, text = answer(pictures(tmp_path, *classes("ant", "bee", "cat", "dog", "eel", "fox", images=2)))
    assert code == 0, text
    assert text.count("held out") >= 2
    assert "12 images, 6 classes, no splits" in text
    assert re.search(r"--protocol test: .*\b4 classes \(8 images\).*\b2\b", text)
    assert "--protocol validation: trains on 2 classes" in text
    assert "ready for training" in text


def test_the_command_lists_what_is_broken_and_exits_with_1(tmp_path):
    code, text = answer(two_broken(tmp_path), "--workers", 2)
    assert code == 1
    assert f"broken: {tmp_path}/owl/1.jpg" in text
    assert f"broken: {tmp_path}/wren/0.jpg" in text
    assert "8 images, 4 classes, no splits" in text
    assert "broken images: 2" in text


def test_a_csv_file_with_splits(tmp_path):
    pictures(tmp_path, *classes("gull", "owl", "plover", "wren", images=2))
    lines = [
        f"{n}/{k}.jpg,{n},{'test' if n > 'owl' else 'train'}"
        for n in ("gull", "owl", "plover", "wren")
        for k in (0, 1)
    ]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *lines]))
    code, text = answer(tmp_path / "list.csv")
    assert code == 0, text
    assert "8 images, 4 classes, train 4, test 4" in text
    assert re.search(r"\b2 .*\(4 images\): plover, wren", text)


def test_absolute_paths_of_a_csv_file_are_checked(tmp_path):
    two_broken(tmp_path / "images")
    (tmp_path / "list.csv").write_text(
        f"path,label\n{tmp_path}/images/gull/0.jpg,gull\n{tmp_path}/images/wren/0.jpg,wren\n"
    )
    code, text = answer(tmp_path / "list.csv")
    assert code == 1
    assert f"broken: {tmp_path}/images/wren/0.jpg" in text


def test_many_classes_are_shortened_to_the_largest_and_the_smallest(tmp_path):
    names = [f"class-{number:02d}" for number in range(30)]
    pictures(tmp_path, *classes(*names, images=1), *(f"class-29/more {k}.jpg" for k in range(3)))
    _, text = answer(tmp_path)
    assert "class-29 │ 4" in text
    assert "... 12 more classes" in text
    assert "class-15" not in text.partition("images, 30 classes")[0]
    assert re.search("single image.* 29 ", text)


def test_nested_folders_say_which_classes_they_give_and_what_to_do_next(tmp_path):
    pictures(tmp_path, *classes(*(f"cats/{name}" for name in "abcd"), *(f"{name}/x" for name in "efghi")))
    code, text = answer(tmp_path)
    assert code == 0, text
    assert "9 like cats/a; --depth 1 takes the top ones: 6 classes" in text
    assert text.endswith(f"next: softwarp train --data {tmp_path}")
    assert settings_for(tmp_path, protocol="test")["batches"]["classes"] == 7
    code, text = answer(tmp_path, "--depth", 1)
    assert code == 0, text
    assert "27 images, 6 classes" in text
    assert text.endswith(f"next: softwarp train --data {tmp_path} --depth 1")
    for words, depth in ((["data.depth=1"], None), ([], 1)):
        _, recipe = recipe_of_words(words, tmp_path, None, depth)
        assert (recipe.data.depth, recipe.batches.classes) == (1, 4)


def test_the_next_step_names_the_list_that_was_checked(tmp_path):
    names = ("ant", "bee", "cat", "dog")
    pictures(tmp_path, *classes(*names))
    (tmp_path / "a list.csv").write_text("path,label\n" + "\n".join(f"{p},{p[:3]}" for p in classes(*names)))
    code, text = answer(tmp_path, "--name", "csv")
    assert code == 0, text
    assert text.endswith(f"next: softwarp train --data '{tmp_path}/a list.csv'")


def test_valid_is_a_split_and_classes_in_two_splits_are_named(tmp_path):
    pictures(tmp_path, *classes("train/ant", "train/bee", "valid/cat", "valid/dog", "test/eel", "test/fox"))
    code, text = answer(tmp_path)
    assert code == 0, text
    assert "train 6" in text
    assert "validation 6" in text
    assert "test 6" in text
    pictures(tmp_path, "test/ant/9.jpg")
    code, text = answer(tmp_path)
    assert code == 1
    assert "│ ant │ 4 │ test, train │" in text
    assert "class 'ant'" in text
    assert "column split" in text


def test_without_a_test_split_the_protocol_that_trains_is_named(tmp_path):
    code, text = answer(pictures(tmp_path, *classes("train/ant", "train/bee", "val/cat", "val/dog")))
    assert code == 1
    assert "0 query" in text
    assert "--protocol validation: trains on 2 classes" in text


def test_missing_files_are_named_and_skipped(tmp_path):
    names = ("ant", "bee", "cat", "dog")
    pictures(tmp_path, *classes(*names))
    rows = [f"{path},{path.split('/')[0]}" for path in [*classes(*names), "dog/gone.jpg"]]
    (tmp_path / "list.csv").write_text("\n".join(["filename,label", *rows]))
    code, text = answer(tmp_path / "list.csv")
    assert code == 1
    assert re.search(rf"1 of 13 .*{tmp_path}: dog/gone\.jpg", text)
    assert "dog/gone.jpg: the file is missing" in text
    assert settings_for(tmp_path / "list.csv", protocol="test")["data"]["name"] == "csv"


def test_photographs_of_telephones_are_taken_or_named_with_the_cure(tmp_path, monkeypatch):
    pictures(tmp_path, *classes("ant", "bee", "cat", "dog"))
    photo = noise(64, 64)
    assert reads_heic()
    photo.save(tmp_path / "ant" / "IMG_1.HEIC")
    photo.save(tmp_path / "bee" / "b.avif")
    photo.save(tmp_path / "cat" / "c.jfif", "JPEG")
    code, text = answer(tmp_path)
    assert code == 0, text
    assert "15 images, 4 classes" in text
    (tmp_path / "ant" / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    monkeypatch.setattr("softwarp.data.decode.reads_heic", lambda: False)
    code, text = answer(tmp_path)
    assert code == 1
    assert "ant/IMG_1.HEIC: a HEIC image; to read it: pip install 'softwarp[heic]'" in text


def test_one_class_cannot_be_trained(tmp_path):
    code, text = answer(pictures(tmp_path, *classes("ant")))
    assert code == 1
    assert re.search("refuse: 1 class: .*four.*add classes", text)


def test_mixed_junk(tmp_path):
    pictures(tmp_path, *classes("ant", "bee", "cat", "dog"), "loose.jpg")
    write(tmp_path, "__MACOSX/ant/._0.jpg", "empty/notes.txt", "Thumbs.db", "ant/Thumbs.db", ".DS_Store")
    write(tmp_path, "dog/fake.jpg", text="no image")
    code, text = answer(tmp_path)
    assert code == 1
    assert "1 (loose.jpg)" in text
    assert "1 (empty)" in text
    assert "__MACOSX" in text
    assert "2 .db" in text
    assert "dog/fake.jpg: " in text
    assert "13 images, 4 classes" in text


def test_names_with_escape_codes_are_shown_escaped(tmp_path):
    pictures(tmp_path, *classes("ant", "bee", "cat", "\x1b[31mdog"))
    write(tmp_path, "ant/\x1b[2J.jpg", text="no image")
    result = run("check", tmp_path)
    assert "\x1b[31m" not in result.stdout
    assert "\x1b[2J" not in result.stdout
    assert r"\x1b[31mdog" in result.stdout
    assert r"ant/\x1b[2J.jpg: " in result.stdout


def test_the_command_names_known_layouts_and_what_does_not_exist(tmp_path):
    assert "did you mean cub" in str(run("check", tmp_path, "--name", "cup").exception)
    assert f"{tmp_path}/nowhere" in str(run("check", tmp_path / "nowhere").exception)


def test_cars_are_explained():
    result = run("cars")
    assert result.exit_code == 0
    assert "cars_test_annos_withlabels.mat" in result.stdout


def test_check_loads_no_torch(tmp_path):
    pictures(tmp_path, *classes("ant", "bee", "cat", "dog"))
    code = (
        "import sys; from softwarp.cli import app; app(['data', 'check', sys.argv[1]], standalone_mode=False)"
        "; sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, tmp_path], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "ready for training" in result.stdout


def test_copies_are_named_and_do_not_stop(tmp_path):
    pictures(tmp_path, *classes("ant", "bee", "cat", "dog"))
    photo = noise(6, 6).resize((90, 90))
    photo.save(tmp_path / "ant" / "photo.png")
    photo.save(tmp_path / "bee" / "same.png")
    photo.resize((45, 45)).save(tmp_path / "cat" / "small.png")
    code, text = answer(tmp_path)
    assert code == 0, text
    assert "identical under two labels: ant/photo.png and bee/same.png" in text
    assert "identical images under two labels: 1;" in text
    assert "small.png" not in text
    code, text = answer(tmp_path, "--deep")
    assert code == 0, text
    assert "nearly identical under two labels: ant/photo.png and cat/small.png" in text


def test_copies_on_both_sides_of_a_split_are_named(tmp_path):
    pictures(tmp_path, *classes("train/ant", "train/bee", "test/cat", "test/dog"))
    (tmp_path / "test" / "cat" / "leak.jpg").write_bytes((tmp_path / "train" / "ant" / "0.jpg").read_bytes())
    code, text = answer(tmp_path)
    assert code == 0, text
    assert "identical in two splits: test/cat/leak.jpg and train/ant/0.jpg" in text


@pytest.mark.parametrize(
    "words",
    ["train", "tune", "benchmark", "show", "data check", "index build", "embed", "faces pack", "faces pairs"],
)
def test_every_command_that_reads_class_folders_takes_a_depth(words):
    told = CliRunner().invoke(cli.app, [*words.split(), "--help"])
    assert told.exit_code == 0
    assert "--depth" in told.output


def test_the_depth_reaches_the_recipe_and_the_index(tmp_path):
    pictures(tmp_path, *classes(*(f"{name}/x" for name in "efghi")))
    shown = CliRunner().invoke(cli.app, ["show", "--data", str(tmp_path), "--depth", "1"])
    assert "depth: 1" in shown.output
    words = index_command(Path("run"), Path("/my fruit"), 1)
    assert words == "softwarp index run '/my fruit' -o 'my fruit.index' --depth 1"
