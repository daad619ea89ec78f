"""Glyphs: the built-in data set. About 2,000 characters x 12 DejaVu styles; a class is a character.

The fonts ship with matplotlib, so training needs no download. Characters that look alike in any style are
one class, under the first of them: no classifier could tell them apart.
"""

import hashlib
import unicodedata
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import matplotlib
import numpy as np
import torch
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from softwarp.files import atomic_write, cache_folder

SIZE = 32  # pixels per side
FONT_SIZE = 20
BASELINE = 23  # row that letters stand on
STYLES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
)
# Two drawings are alike when the squared difference is at most this share of the fainter one's ink.
ALIKE = 0.02


@dataclass(frozen=True)
class Glyphs:
    """Images [N, 1, 32, 32] of bytes, labels [N], the character of each class, and the images' hash."""

    images: Tensor
    labels: Tensor
    characters: str
    sha256: str


def load_glyphs() -> Glyphs:
    """Return the glyphs, drawn at the first call and kept in the user's cache folder."""
    versions = "-".join(f"{name}{version(name)}" for name in ("matplotlib", "pillow"))
    path = cache_folder() / f"glyphs-{SIZE}-{FONT_SIZE}-{BASELINE}-{ALIKE}-{versions}.npz"
    try:
        images, codes = _read(path)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):  # missing or damaged
        images, codes = draw_glyphs()
        _keep(path, images, codes)
    labels = torch.arange(len(codes)).repeat_interleave(len(STYLES))
    flat = torch.from_numpy(images).reshape(-1, 1, SIZE, SIZE)
    return Glyphs(flat, labels, "".join(map(chr, codes)), hashlib.sha256(images.tobytes()).hexdigest())


def glyph_name(character: str, style: str) -> str:
    """Return how a run folder names an image.

    >>> glyph_name("A", "DejaVuSans")
    'U+0041 DejaVuSans'
    """
    return f"U+{ord(character):04X} {style}"


def glyph_images(names: Sequence[str]) -> Tensor:
    """Return the images [N, 1, 32, 32] of these names."""
    glyphs = load_glyphs()
    all_names = (glyph_name(character, style) for character in glyphs.characters for style in STYLES)
    places = {name: place for place, name in enumerate(all_names)}
    return glyphs.images[[places[name] for name in names]]


def draw_glyphs() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images [classes, styles, 32, 32] and the code point of each class."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    layout = ImageFont.Layout.BASIC  # the other engine may be missing, and draws differently
    files = [folder / f"{style}.ttf" for style in STYLES]
    fonts = [ImageFont.truetype(str(file), FONT_SIZE, layout_engine=layout) for file in files]
    codes = _common_characters(files)
    drawn = np.zeros((len(codes), len(fonts), SIZE, SIZE), np.uint8)
    whole = np.ones(len(codes), bool)
    for i, code in enumerate(codes):
        for j, font in enumerate(fonts):
            drawn[i, j], fits = _draw(font, chr(code))
            whole[i] &= fits and bool(drawn[i, j].any())
    drawn, codes = drawn[whole], codes[whole]
    kept = _first_of_each_look(drawn)
    return drawn[kept], codes[kept]


def drawn_alike(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return [classes, classes]: which pairs look alike in any style; the diagonal is true."""
    result = np.zeros((len(images), len(images)), bool)
    for style in range(images.shape[1]):
        pixels = images[:, style].reshape(len(images), -1).astype(np.float64) / 255
        ink = (pixels**2).sum(1)
        difference = ink[:, None] + ink - 2 * pixels @ pixels.T
        result |= difference <= ALIKE * np.minimum(ink[:, None], ink) + 1e-9
    return result


def _first_of_each_look(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    _, look = connected_components(drawn_alike(images), directed=False)
    return np.sort(np.unique(look, return_index=True)[1])


def _common_characters(files: list[Path]) -> NDArray[np.int64]:
    common = set.intersection(*(set(TTFont(file).getBestCmap()) for file in files))
    # Marks are drawn onto other letters; separators and control characters are not drawn at all.
    visible = [code for code in sorted(common) if unicodedata.category(chr(code))[0] not in "MZC"]
    return np.array(visible, np.int64)


def _draw(font: ImageFont.FreeTypeFont, character: str) -> tuple[NDArray[np.uint8], bool]:
    """Return the character on its baseline, centred horizontally, and whether it fits."""
    left, top, right, bottom = font.getbbox(character, anchor="ls")
    fits = right - left <= SIZE and -top <= BASELINE and bottom <= SIZE - BASELINE
    image = Image.new("L", (SIZE, SIZE))
    start = (SIZE - left - right) / 2
    ImageDraw.Draw(image).text((start, BASELINE), character, fill=255, font=font, anchor="ls")
    return np.asarray(image), fits


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        images, codes = archive["images"], archive["codes"]
    if images.shape != (len(codes), len(STYLES), SIZE, SIZE) or images.dtype != np.uint8:
        raise ValueError(f"{path} is not what this version writes")
    return images, codes


def _keep(path: Path, images: NDArray[np.uint8], codes: NDArray[np.int64]) -> None:
    with suppress(OSError), atomic_write(path) as file:  # without a cache it is only slower
        np.savez_compressed(file, images=images, codes=codes)
