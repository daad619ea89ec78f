import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from softwarp.commands.data import app
from softwarp.data import check
from softwarp.data.check import check_images
from softwarp.data.tables import Table, read_table


@pytest.fixture
def images(tmp_path):
    """Four classes of two images, one of which is cut short and one no image at all."""
    for name in ("gull", "owl", "plover", "wren"):
        (tmp_path / name).mkdir()
        for number in (0, 1):
            Image.effect_noise((40, 30), 60).save(tmp_path / name / f"{number}.jpg")
    whole = (tmp_path / "owl" / "1.jpg").read_bytes()
    (tmp_path / "owl" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "wren" / "0.jpg").write_text("no image")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_broken_images_are_found_in_order(images, workers):
    ticks = []
    broken = check_images(read_table("folder", images), workers=workers, advance=lambda: ticks.append(1))
    assert [image.path for image in broken] == ["owl/1.jpg", "wren/0.jpg"]
    assert all(image.path in image.reason for image in broken)
    assert len(ticks) == 8


def test_absolute_paths_of_a_csv_file_are_checked(images, tmp_path_factory):
    file = tmp_path_factory.mktemp("lists") / "list.csv"
    file.write_text(f"path,label\n{images}/gull/0.jpg,gull\n{images}/wren/0.jpg,wren\n")
    result = run("check", file)
    assert result.exit_code == 1
    assert f"broken: {images}/wren/0.jpg: not an image" in result.stdout
    assert "2 images, 2 classes" in result.stdout


def test_a_file_that_vanished_is_broken(tmp_path):
    table = Table(tmp_path, ("gone.jpg",), np.array([0]), ("wren",), None)
    assert [image.path for image in check_images(table)] == ["gone.jpg"]


def test_workers_decode_side_by_side_over_several_blocks(images, monkeypatch):
    meeting = threading.Barrier(2, timeout=10)  # passes only where two are at it together
    monkeypatch.setattr(check, "BLOCK", 4)
    monkeypatch.setattr(check, "read_image", lambda path: meeting.wait())
    assert check_images(read_table("folder", images), workers=2) == []


def test_the_command_lists_what_is_broken_and_exits_with_1(images):
    result = run("check", images, "--workers", 2)
    assert result.exit_code == 1
    assert "owl/1.jpg" in result.stdout
    assert "wren/0.jpg" in result.stdout
    assert "gull" not in result.stdout
    assert "8 images, 4 classes, no splits\n2 broken" in result.stdout


def test_the_command_says_that_all_is_well(images):
    (images / "owl" / "1.jpg").unlink()
    (images / "wren" / "0.jpg").unlink()
    rows = [(path, path.parent.name) for path in sorted(images.glob("*/*.jpg"))]
    lines = [
        f"{path.relative_to(images)},{name},{'test' if name > 'owl' else 'train'}" for path, name in rows
    ]
    (images / "list.csv").write_text("\n".join(["path,label,split", *lines]))
    result = run("check", images / "list.csv")
    assert result.exit_code == 0, result.output
    assert result.stdout == "6 images, 4 classes, train 3, test 3\nall can be read\n"
    assert "decoding" in result.stderr


def test_the_command_names_known_layouts(images):
    result = run("check", images, "--name", "cup")
    assert result.exit_code != 0
    assert "did you mean cub" in str(result.exception)


def test_cars_are_explained():
    result = run("cars")
    assert result.exit_code == 0
    assert "cars_test_annos_withlabels.mat" in result.stdout


def test_the_commands_load_nothing_heavy_before_they_run():
    code = "import sys, softwarp.commands.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
