"""Image files that tests make, whole and broken."""

import numpy as np
from PIL import Image


def noise(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def jpeg(path, image, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "JPEG", quality=95, **settings)
    return path


def truncated(path):
    jpeg(path, noise(64, 64))
    path.write_bytes(path.read_bytes()[:-800])
    return path


def two_broken(root):
    """Four classes of two images, one of which is cut short and one no image at all."""
    for name in ("gull", "owl", "plover", "wren"):
        for number in (0, 1):
            jpeg(root / name / f"{number}.jpg", noise(40, 30, seed=number))
    whole = (root / "owl" / "1.jpg").read_bytes()
    (root / "owl" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "wren" / "0.jpg").write_text("no image")
    return root


def pictures(root, *paths):
    """Whole images at these places."""
    for number, path in enumerate(paths):
        jpeg(root / path, noise(40, 30, seed=number))
    return root


def stripes(folder, classes=12, images=4, side=40):
    """Classes are stripes of different widths and colours."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        stripes = np.arange(side)[:, None, None] // (label % 6 + 1) % 2 * generator.integers(60, 255, 3)
        (folder / f"class {label:02d}").mkdir(parents=True)
        for number in range(images):
            pixels = np.clip(stripes + generator.normal(0, 20, (side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class {label:02d}" / f"{number}.png")
    return folder
