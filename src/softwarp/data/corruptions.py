"""Nine corruptions of an image, five severities each: the paper's Table 4.

The paper used imgaug, with its default settings "for most of the corruptions". imgaug 0.4 draws a strength
from a default range; here severity s takes s fifths of its upper end, so that severity 5 is the strongest
that imgaug draws by itself. Cutout has one default size, which is severity 3. The blur has five severities of
its own, those of ImageNet-C for images of 224 pixels: radii shrink with the image. Noise is the same for all
channels of a pixel.

One strength stands outside the severities: no dropout in imgaug's range costs as much as the paper's does.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from softwarp.data.images import Batch
from softwarp.data.sources import Images

# Takes an image, bytes [C, H, W], and a severity from 1 to 5.
Corruption = Callable[[Tensor, int, np.random.Generator], Tensor]
SEVERITIES = (1, 2, 3, 4, 5)


def gaussian(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """AdditiveGaussianNoise(scale=(0, 15)): a deviation of 3, 6, 9, 12, 15 of 255."""
    noise = generator.normal(0, 3 * severity, image.shape[1:])
    return _bytes(image + torch.from_numpy(noise))


def uniform(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """AddElementwise((-20, 20)): evenly within 4, 8, 12, 16, 20 of 255."""
    noise = generator.uniform(-4 * severity, 4 * severity, image.shape[1:])
    return _bytes(image + torch.from_numpy(noise))


def salt_and_pepper(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """SaltAndPepper(p=(0, 0.03)): 0.6, 1.2, 1.8, 2.4, 3% of pixels become nearly black or nearly white."""
    hit = torch.from_numpy(generator.random(image.shape[1:]) < 0.006 * severity)
    grains = torch.from_numpy(255 * generator.beta(0.5, 0.5, image.shape[1:]))
    return torch.where(hit, _bytes(grains), image)


def dropout(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """Dropout(p=(0, 0.05)): 1, 2, 3, 4, 5% of pixels become black; a severity is a percentage here."""
    kept = torch.from_numpy(generator.random(image.shape[1:]) >= 0.01 * severity)
    return image * kept


def cutout(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """Cutout(size=0.2): a grey square whose side is 0.1, 0.15, 0.2, 0.3, 0.4 of the image's, anywhere."""
    height, width = image.shape[1:]
    half = (0.1, 0.15, 0.2, 0.3, 0.4)[severity - 1] * min(height, width) / 2
    y, x = generator.uniform(0, height), generator.uniform(0, width)
    rows = slice(max(0, round(y - half)), max(0, round(y + half)))
    columns = slice(max(0, round(x - half)), max(0, round(x + half)))
    changed = image.clone()
    changed[:, rows, columns] = 128
    return changed


def shear(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """ShearX((-30, 30)): by 6, 12, 18, 24, 30 degrees to the left or right, black where nothing is."""
    angle = 6.0 * severity * float(generator.choice((-1, 1)))
    sheared: Tensor = functional.affine(
        image,
        angle=0.0,
        translate=[0, 0],
        scale=1.0,
        shear=[angle, 0.0],
        interpolation=v2.InterpolationMode.BILINEAR,
    )
    return sheared


def jigsaw(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """Jigsaw(nb_rows=(3, 10), nb_cols=(3, 10)): cut into 3, 4, 6, 8, 10 rows and columns.

    About half of the cells change places with a neighbour. What does not divide evenly, at the right and
    lower edge, stays.
    """
    count = (3, 4, 6, 8, 10)[severity - 1]
    high, wide = image.shape[1] // count, image.shape[2] // count
    places = np.arange(count * count).reshape(count, count)
    moves = generator.random((count, count)) < 0.5
    for y, x in np.argwhere(moves):
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[generator.integers(4)]
        other = (min(max(y + down, 0), count - 1), min(max(x + right, 0), count - 1))
        if moves[other] and moves[y, x]:
            places[y, x], places[other] = places[other], places[y, x]
            moves[y, x] = moves[other] = False
    changed = image.clone()
    for target, source in enumerate(places.flatten().tolist()):
        (to_y, to_x), (from_y, from_x) = divmod(target, count), divmod(source, count)
        cell = image[:, from_y * high : (from_y + 1) * high, from_x * wide : (from_x + 1) * wide]
        changed[:, to_y * high : (to_y + 1) * high, to_x * wide : (to_x + 1) * wide] = cell
    return changed


def hue_and_saturation(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """AddToHueAndSaturation((-40, 40)): both by 8, 16, 24, 32, 40 of 255, up or down; grey stays grey."""
    amount = 8 * severity / 255
    turned = functional.adjust_hue(image, amount * float(generator.choice((-1, 1)))).float()
    brightest = turned.amax(0)
    saturation = (brightest - turned.amin(0)) / brightest.clamp_min(1e-9)
    wanted = (saturation + amount * float(generator.choice((-1, 1)))).clamp(0, 1)
    factor = torch.where(saturation > 0, wanted / saturation.clamp_min(1e-9), 1.0)
    return _bytes(brightest - (brightest - turned) * factor)


def defocus_blur(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """DefocusBlur(severity=(1, 5)): a disk of radius 3, 4, 6, 8, 10 pixels in an image of 224."""
    radius = (3, 4, 6, 8, 10)[severity - 1] * min(image.shape[1:]) / 224
    reach = int(np.ceil(radius))
    steps = torch.arange(-reach, reach + 1.0)
    disk = (radius + 0.5 - torch.hypot(steps[:, None], steps)).clamp(0, 1)
    kernel = (disk / disk.sum()).expand(len(image), 1, -1, -1)
    wide = torch.nn.functional.pad(image[None].float(), (reach,) * 4, mode="reflect")
    return _bytes(torch.nn.functional.conv2d(wide, kernel, groups=len(image))[0])


def _bytes(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian": gaussian,
    "uniform": uniform,
    "salt and pepper": salt_and_pepper,
    "dropout": dropout,
    "cutout": cutout,
    "affine shear": shear,
    "jigsaw": jigsaw,
    "hue and saturation": hue_and_saturation,
    "defocus blur": defocus_blur,
}
OF_COLOUR = ("hue and saturation",)  # grey images have none to change


def heavy_dropout(image: Tensor, severity: int, generator: np.random.Generator) -> Tensor:
    """Dropout(p=0.35): 35% of pixels become black, the one strength that there is."""
    return dropout(image, HEAVY, generator)


HEAVY = 35  # percent, at which Recall@1 falls as far as in Table 4: experiments/dropout_strength.py
EXTRA: dict[str, Corruption] = {f"dropout of {HEAVY}%": heavy_dropout}


def corrupt(image: Tensor, name: str, severity: int, *, item: int = 0, seed: int = 0) -> Tensor:
    """Return bytes [C, H, W], corrupted; item and seed decide where, the severity how much.

    >>> corrupt(torch.full((3, 8, 8), 100, dtype=torch.uint8), "gaussian", 5).shape
    torch.Size([3, 8, 8])
    """
    known = CORRUPTIONS | EXTRA
    generator = np.random.default_rng((seed, item, list(known).index(name)))
    return known[name](image, severity, generator)


class Corrupted:
    """A data set whose images are corrupted as the model would see them; item by item always the same way."""

    def __init__(self, images: Images, name: str, severity: int, *, seed: int = 0) -> None:
        self.images, self.name, self.severity, self.seed = images, name, severity, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, draws: list[tuple[int, int]]) -> Batch:
        """Return the batch of these draws, each image corrupted."""
        batch = self.images.__getitems__(draws)
        changed = [
            corrupt(image, self.name, self.severity, item=item, seed=self.seed)
            for image, item in zip(batch.images, batch.items.tolist(), strict=True)
        ]
        images = torch.stack(changed) if changed else batch.images
        return Batch(images, batch.labels, batch.items, batch.broken)

    def paths_without(self, items: Tensor) -> list[str]:
        return self.images.paths_without(items)
