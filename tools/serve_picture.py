"""docs/images/serve.png: the page of `softwarp serve`, with characters that the demo has not trained on.

softwarp demo && python tools/serve_picture.py     needs Chromium, and pip install playwright
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from PIL import Image, ImageFilter
from playwright.sync_api import ViewportSize, sync_playwright

import softwarp
from softwarp.data.glyphs import STYLES, load_glyphs
from softwarp.data.sources import glyph_source
from softwarp.data.splits import SplitPlan

PICTURE = Path("docs/images/serve.png")
VIEW: ViewportSize = {"width": 1160, "height": 684}
CHARACTER, STYLE = "₦", "DejaVuSerif"  # what the query is drawn from; it is left out of the index


def draw(folder: Path) -> Path:
    """Return an image to search with; the test characters are drawn into folders named by character."""
    tested = set(glyph_source(plan=SplitPlan("test")).evaluated_names)
    glyphs = load_glyphs()
    for place, pixels in enumerate(glyphs.images[:, 0].numpy()):
        character, style = glyphs.characters[place // len(STYLES)], STYLES[place % len(STYLES)]
        if character in tested and (character, style) != (CHARACTER, STYLE):
            file = folder / f"{character} U+{ord(character):04X}" / f"{style}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
        elif (character, style) == (CHARACTER, STYLE):
            image = Image.fromarray(pixels)
    query = folder.parent / "query.png"
    turned = image.resize((128, 128), Image.Resampling.BICUBIC).rotate(8, Image.Resampling.BICUBIC)
    turned.filter(ImageFilter.GaussianBlur(1)).save(query)
    return query


@contextmanager
def served(index: Path) -> Iterator[str]:
    """Yield the address of an index in the browser."""
    command = [sys.executable, "-m", "softwarp", "serve", str(index), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.split()[1] for line in process.stdout if line.startswith("open "))
        finally:
            process.terminate()


def main(run: Path = Path("runs/demo/warped_softmax"), picture: Path = PICTURE) -> None:
    """Take the picture."""
    with TemporaryDirectory() as place, sync_playwright() as playwright:
        images, index = Path(place) / "characters", Path(place) / "characters.index"
        query = draw(images)
        softwarp.Index.build(run, images, index)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-background-networking"]
        )
        with served(index) as address:
            page = browser.new_page(viewport=VIEW)
            page.goto(address)
            page.wait_for_selector("body[data-ready]")
            page.set_input_files("#file", query)
            page.wait_for_selector("#votes li")
            page.wait_for_load_state("networkidle")
            content = page.screenshot()
        browser.close()
    Image.open(BytesIO(content)).convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    typer.run(main)
