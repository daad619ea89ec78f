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
