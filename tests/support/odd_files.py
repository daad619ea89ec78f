"""More than sixty odd files in one folder: what people and programs leave among images."""

import io
import os
import socket
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from softwarp.data.decode import reads_heic
from support.pictures import noise


def encoded(image, kind="JPEG", **settings):
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def bomb():
    """A PNG whose header promises 30,000 x 30,000 pixels."""
    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def good_files():
    """Name -> content of the files that are images, however odd."""
    assert reads_heic()
    photo = noise(24, 20)
    frames = {"save_all": True, "append_images": [noise(24, 20, 1), noise(24, 20, 2)]}
    turned = Image.Exif()
    turned[0x0112] = 6
    grey16 = Image.fromarray(np.linspace(0, 65535, 480).reshape(20, 24).astype(np.uint16))
    floats = Image.fromarray(np.linspace(0, 1, 480).reshape(20, 24).astype(np.float32))
    palette, clear = photo.convert("P"), photo.convert("RGBA")
    clear.putalpha(99)
    plain = encoded(photo)
    kinds = {
        "photo.jpeg": "JPEG",
        "PHOTO.JPG": "JPEG",
        "photo.jfif": "JPEG",
        "photo.png": "PNG",
        "photo.webp": "WEBP",
        "photo.gif": "GIF",
        "photo.bmp": "BMP",
        "photo.tif": "TIFF",
        "photo.Tiff": "TIFF",
        "photo.ppm": "PPM",
        "photo.avif": "AVIF",
        "IMG_0001.HEIC": "HEIF",
        "photo.heif": "HEIF",
        "a PNG named.jpg": "PNG",
        "a JPEG named.png": "JPEG",
        "a HEIC named.jpg": "HEIF",
    }
    names = [
        "new\nline.jpg",
        "bird 🐦 写真.jpg",
        "quotes ' and \".jpg",
        "$(touch x); `id` && *.jpg",
        "-rf.jpg",
        "--help.png",
        "[red]markup[bold] {0} %s.jpg",
        "escape \x1b[2J.jpg",
        "tab\tand\rreturn.jpg",
        "right \u202e to left.jpg",
        "two.dots.jpg",
        " space.jpg",
        "\\back\\slash.jpg",
        "e\u0301 decomposed.jpg",
        "long " + "n" * 246 + ".jpg",
    ]
    return {
        **{name: encoded(photo, kind) for name, kind in kinds.items()},
        **{name: encoded(noise(24, 20, 10 + place)) for place, name in enumerate(names)},
        "grey.pgm": encoded(photo.convert("L"), "PPM"),
        "grey.jpg": encoded(photo.convert("L")),
        "cmyk.jpg": encoded(photo.convert("CMYK")),
        "progressive.jpg": encoded(photo, progressive=True),
        "sixteen bits.png": encoded(grey16, "PNG"),
        "sixteen bits.tif": encoded(grey16, "TIFF"),
        "floats.tif": encoded(floats, "TIFF"),
        "one bit.png": encoded(photo.convert("1"), "PNG"),
        "palette.png": encoded(palette, "PNG", transparency=0),
        "clear.png": encoded(clear, "PNG"),
        "clear.webp": encoded(clear, "WEBP"),
        "grey and clear.png": encoded(clear.convert("LA"), "PNG"),
        "animated.gif": encoded(photo, "GIF", **frames),
        "animated.png": encoded(photo, "PNG", **frames),
        "animated.webp": encoded(photo, "WEBP", **frames),
        "pages.tif": encoded(photo, "TIFF", **frames),
        "turned.jpg": encoded(photo, exif=turned),
        "damaged exif.jpg": encoded(photo, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"),
        "one pixel.png": encoded(noise(1, 1), "PNG"),
        "a line.png": encoded(noise(900, 1), "PNG"),
        "with an appendix.jpg": plain + b"<?php appendix ?>",
    }


def broken_files():
    """Name -> content of the files that are named like images."""
    plain = encoded(noise(64, 64))
    large = Image.fromarray(np.full((20, 24), 300, np.float32))
    return {
        "empty.jpg": b"",
        "cut.jpg": plain[: len(plain) // 2],
        "cut.png": encoded(noise(64, 64), "PNG")[:-90],
        "cut.heic": encoded(noise(64, 64), "HEIF")[:300],
        "cut.avif": encoded(noise(64, 64), "AVIF")[:200],
        "text.jpg": b"this is no picture",
        "page.jpg": b"<!doctype html><title>404</title>",
        "drawing.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "paper.jpg": b"%PDF-1.7\n",
        "archive.png": b"PK\x03\x04" + bytes(60),
        "video.heic": b"\0\0\0\x18ftypisom" + bytes(60),
        "random.jpg": np.random.default_rng(0).bytes(500),
        "bomb.png": bomb(),
        "floats to 300.tif": encoded(large, "TIFF"),
    }


LEFT_OUT = {
    "notes.txt": b"notes",
    "Thumbs.db": b"",
    "photo.psd": b"8BPS",
    "drawing.svg": b"<svg/>",
    "raw.CR2": b"",
    "no extension": b"",
    "list.json": b"{}",
    ".hidden.jpg": b"",
    "._photo.jpg": b"",
    ".DS_Store": b"",
}


def odd_folder(folder: Path) -> tuple[set[str], set[str]]:
    """Fill a folder; return the names that are images, and those that are named like one and are none."""
    folder.mkdir(parents=True)
    good, broken = good_files(), broken_files()
    for name, content in {**good, **broken, **LEFT_OUT}.items():
        (folder / name).write_bytes(content)
    (folder / "link.jpg").symlink_to("photo.jpeg")
    os.link(folder / "photo.jpeg", folder / "hard link.jpg")
    with (folder / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 40)
    for name, target in {
        "dangling.jpg": "nowhere.jpg",
        "itself.jpg": "itself.jpg",
        "zero.jpg": "/dev/zero",
        "null.png": "/dev/null",
        "link to a pipe.jpg": "pipe.jpg",
        "folder link": "..",
    }.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.jpg")
    here = Path.cwd()
    os.chdir(folder)  # the name of a socket may have 107 letters
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("socket.jpg")
    finally:
        os.chdir(here)
    (folder / "a folder.jpg").mkdir()
    (folder / "__MACOSX").mkdir()
    (folder / os.fsdecode(b"not utf-8 \xff.jpg")).write_bytes(good["photo.jpeg"])
    specials = {
        "sparse.jpg", "dangling.jpg", "itself.jpg", "zero.jpg", "null.png", "link to a pipe.jpg", "pipe.jpg",
        "socket.jpg",
    }  # fmt: skip
    return {*good, "link.jpg", "hard link.jpg"}, {*broken, *specials}
