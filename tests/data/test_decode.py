import errno
import os
import re
import socket
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from support.pictures import jpeg, noise, truncated

from softwarp.data import decode
from softwarp.data.decode import FORMAT_OF, image_size, open_image, read_content, read_image, reads_heic

RED, WHITE = (255, 0, 0), (255, 255, 255)


def close(image, colour, at=(0, 0)):
    return max(abs(a - b) for a, b in zip(image.getpixel(at), colour, strict=True)) <= 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    Image.new("RGB", (5, 4), WHITE).convert(mode).save(path)
    image = read_image(path)
    assert (image.mode, image.size, image.getpixel((4, 3))) == ("RGB", (5, 4), WHITE)


def test_cmyk_jpeg_has_its_colours(tmp_path):
    """Pillow writes and reads them inverted, with Adobe's marker."""
    path = jpeg(tmp_path / "cmyk.jpg", Image.new("RGB", (16, 16), RED).convert("CMYK"))
    assert b"Adobe" in path.read_bytes()
    assert close(read_image(path), RED)


def test_transparency_is_white(tmp_path):
    clear = Image.new("RGBA", (2, 1), (*RED, 255))
    clear.putpixel((1, 0), (0, 0, 255, 0))
    clear.save(tmp_path / "alpha.png")
    palette = Image.new("P", (2, 1))
    palette.putpalette([*RED, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=1)
    palette.save(tmp_path / "shares.png", transparency=bytes([255, 0]))
    palette.save(tmp_path / "opaque.png")
    for name in ("alpha", "palette", "shares"):
        image = read_image(tmp_path / f"{name}.png")
        assert [image.getpixel((x, 0)) for x in (0, 1)] == [RED, WHITE], name
    assert read_image(tmp_path / "opaque.png").getpixel((1, 0)) == (0, 0, 255)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    grey = np.array([[0, 256, 32768, 65535]], np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert np.asarray(read_image(tmp_path / "grey.png"))[0, :, 0].tolist() == [0, 1, 128, 255]
    Image.fromarray(np.array([[-5, 256, 70_000]], np.int32)).save(tmp_path / "wide.tif")
    assert np.asarray(read_image(tmp_path / "wide.tif"))[0, :, 0].tolist() == [0, 1, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shorter_side", [None, 10])
def test_exif_orientation_is_undone(tmp_path, orientation, shorter_side):
    """Red is at the top left once upright; where it was stored is EXIF's own definition."""
    corner = {1: (0, 0), 2: (1, 0), 3: (1, 1), 4: (0, 1), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}[
        orientation
    ]
    turned = orientation >= 5
    stored = Image.new("RGB", (64, 32) if not turned else (32, 64))
    box = tuple(side // 2 * place for side, place in zip(stored.size, corner, strict=True))
    stored.paste(RED, (*box, box[0] + stored.width // 2, box[1] + stored.height // 2))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = read_image(jpeg(tmp_path / "turned.jpg", stored, exif=exif), shorter_side=shorter_side)
    width, height = image.size
    assert (width, height) == ((64, 32) if shorter_side is None else (32, 16))
    assert close(image, RED, (2, 2))
    for at in ((width - 3, 2), (2, height - 3), (width - 3, height - 3)):
        assert close(image, (0, 0, 0), at)


def test_damaged_exif_does_not_break_whole_pixels(tmp_path):
    for name in ("exif.jpg", "exif.png"):
        Image.new("RGB", (8, 8), RED).save(tmp_path / name, exif=b"Exif\0\0nonsense of some length")
        assert close(read_image(tmp_path / name), RED)


@pytest.mark.parametrize(
    ("shorter_side", "size"), [(None, (160, 80)), (41, (160, 80)), (40, (80, 40)), (9, (20, 10))]
)
def test_a_jpeg_is_decoded_no_smaller_than_asked(tmp_path, shorter_side, size):
    path = jpeg(tmp_path / "large.jpg", noise(160, 80))
    assert read_image(path, shorter_side=shorter_side).size == size


def test_what_is_broken_is_named_with_its_cause(tmp_path, monkeypatch):
    empty, text, cut = (tmp_path / name for name in ("empty.jpg", "text.jpg", "cut.jpg"))
    empty.touch()
    text.write_text("this is no picture")
    truncated(cut)
    noise(9, 9).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-90])
    causes = {"empty.jpg": "empty", "text.jpg": "known kind", "cut.jpg": "truncated", "cut.png": "truncated"}
    for name, cause in causes.items():
        with pytest.raises(ValueError, match=f"{name}: .*{cause}"):
            read_image(tmp_path / name)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    noise(9, 9).save(tmp_path / "bomb.png")
    with pytest.raises(ValueError, match=r"bomb\.png: .*decompression bomb"):
        read_image(tmp_path / "bomb.png")


def test_floats_from_0_to_1_are_scaled_and_others_refused(tmp_path):
    def floats(*values):
        Image.fromarray(np.array([values], np.float32)).save(tmp_path / "floats.tif")
        return tmp_path / "floats.tif"

    assert np.asarray(read_image(floats(0, 0.5, 1)))[0, :, 2].tolist() == [0, 128, 255]
    for values in ((0, 128, 255), (-0.1, 1), (0, float("nan"))):
        with pytest.raises(ValueError, match=r"floats\.tif: .*0\.\.1"):
            read_image(floats(*values))


def test_a_file_that_is_missing_or_may_not_be_read_is_broken_and_others_errors_pass(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"missing\.jpg: the file is missing"):
        read_image(tmp_path / "missing.jpg")
    with pytest.raises(ValueError, match="Is a directory"):
        read_image(tmp_path)

    jpeg(tmp_path / "image.jpg", noise(9, 9))

    def refuse(error):
        def fail(*_):
            raise error

        monkeypatch.setattr(Image, "open", fail)

    refuse(PermissionError(errno.EACCES, "Permission denied"))  # chmod does not stop root
    with pytest.raises(ValueError, match=r"image\.jpg: Permission denied"):
        read_image(tmp_path / "image.jpg")
    refuse(OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(OSError, match="Too many"):  # it says nothing about the image
        read_image(tmp_path / "image.jpg")
    refuse(MemoryError())
    with pytest.raises(MemoryError):
        read_image(tmp_path / "image.jpg")


def odd_files(folder):
    """A pipe, a socket, a link to a device that never ends, and a link to a pipe."""
    os.mkfifo(folder / "pipe.jpg")
    (folder / "link to a pipe.jpg").symlink_to(folder / "pipe.jpg")
    (folder / "zero.jpg").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(folder / "s.jpg"))
    return sorted(folder.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="pipes and devices")
@pytest.mark.parametrize("read", [read_image, read_content, open_image])
def test_only_regular_files_are_opened(tmp_path, monkeypatch, read):
    opened, original = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(path) or original(path, *rest))
    files = odd_files(tmp_path)
    assert len(files) == 4
    for path in files:
        with pytest.raises(ValueError, match=f"{path.name}: not a regular file"):
            read(path)
    assert opened == []  # opening alone may wait for ever


@pytest.mark.skipif(sys.platform != "linux", reason="pipes and devices")
def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    regular = os.stat_result((stat.S_IFREG, *[0] * 9))
    monkeypatch.setattr(Path, "stat", lambda path: regular)
    with pytest.raises(ValueError, match="not a regular file"):
        read_image(tmp_path / "pipe.jpg")


def test_a_file_larger_than_any_image_is_not_read(tmp_path):
    path = tmp_path / "sparse.jpg"
    with path.open("wb") as file:
        file.truncate((1 << 40) + 1)
    with pytest.raises(ValueError, match=r"sparse\.jpg: 1,024\.0 GiB"):
        read_content(path)
    with pytest.raises(ValueError, match=r"sparse\.jpg: 1,024\.0 GiB"):
        read_image(path)


@pytest.mark.parametrize(("suffix", "kind"), FORMAT_OF.items())
def test_every_kind_of_image_is_read(tmp_path, suffix, kind):
    assert reads_heic()
    path = tmp_path / f"image{suffix}"
    red = Image.new("RGB", (64, 48), RED).convert("L" if suffix == ".pgm" else "RGB")
    red.save(path, kind)
    image = read_image(path)
    assert (image.size, image.mode) == ((64, 48), "RGB")
    assert close(image, RED) or suffix == ".pgm"
    with open_image(path) as file:
        assert image_size(file) == (64, 48)


def test_heic_without_its_package_is_named_with_what_installs_it(tmp_path, monkeypatch):
    heic, video = tmp_path / "IMG_1.HEIC", tmp_path / "video.heic"
    heic.write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    video.write_bytes(b"\0\0\0\x18ftypisom" + bytes(40))
    monkeypatch.setattr(decode, "reads_heic", lambda: False)
    with pytest.raises(ValueError, match=r"IMG_1\.HEIC: .*pip install 'softwarp\[heic\]'"):
        read_image(heic)
    with pytest.raises(ValueError, match=r"video\.heic: not an image of a known kind"):
        read_image(video)


def test_heic_is_found_missing_where_it_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert reads_heic.__wrapped__() is False


def test_no_other_place_opens_image_files():
    """Studies draw from data of their own; the others open bytes that are in memory."""
    source = Path(decode.__file__).parents[1]
    files = [path for path in source.rglob("*.py") if "studies" not in path.parts]
    assert len(files) > 100
    found = {path.name for path in files if re.search(r"\bImage\.open\(", path.read_text())}
    assert found == {"decode.py", "uploads.py", "map_file.py"}
