"""From stored images to batches: transforms, the torch Dataset.

Batches are bytes, uint8 [N, 3, crop, crop]: the model normalises them on its device. Transforms work on
tensors, not on PIL images: PIL delivers channels-last pixels, for which torchvision's antialiased resize of
bytes is faster, especially at 224 pixels.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from softwarp.data.stores import Store
from softwarp.memory import give_back_memory
from softwarp.names import did_you_mean

Transform = Callable[[Image.Image | Tensor], Tensor]
INTERPOLATIONS = {
    "bilinear": v2.InterpolationMode.BILINEAR,
    "bicubic": v2.InterpolationMode.BICUBIC,
}
TRAIN_TRANSFORMS = ("random_resized_crop", "resize_random_crop", "none")
PREFETCHED = 4  # batches that each worker keeps ready
GREY = (124, 116, 104)  # the mean of ImageNet: fills erased rectangles
SLIMMEST = 16  # longer side / shorter side; enlarging a 1 x 10000 image whole would take gigabytes


def train_transform(
    name: str,
    *,
    resize: int,
    crop: int,
    scale: tuple[float, float] = (0.08, 1.0),
    color_jitter: tuple[float, float, float, float] | None = None,
    erase: float = 0.0,
    interpolation: str = "bilinear",
    crop_mode: str = "center",
) -> Transform:
    """Return the random transform of that name, from an image to bytes [3, crop, crop].

    Resizing is antialiased.

    Args:
        name: `random_resized_crop` cuts a `scale` share of the area, as the authors' code does;
            `resize_random_crop` resizes the shorter side to `resize` and cuts a square, as the paper says.
            Both flip half of the images from left to right. `none` is `test_transform`.
        resize: not used by `random_resized_crop`.
        scale: used by `random_resized_crop` alone.
        color_jitter: how much brightness, contrast, saturation and hue vary.
        erase: share of images in which a rectangle, 2 to 40 percent of the area, turns grey.
        interpolation: `bilinear` or `bicubic`.
        crop_mode: as in `test_transform`; not used by `random_resized_crop`.

    >>> train_transform("resize_random_crop", resize=8, crop=6)(Image.new("RGB", (1, 1))).shape
    torch.Size([3, 6, 6])
    """
    after: list[Callable[..., Tensor]] = [] if name == "none" else [v2.RandomHorizontalFlip()]
    if color_jitter is not None:
        after.append(v2.ColorJitter(*color_jitter))
    if erase:
        after.append(v2.RandomErasing(erase, scale=(0.02, 0.4), value=GREY))
    if name == "random_resized_crop":
        cut = v2.RandomResizedCrop(
            crop, scale=scale, interpolation=INTERPOLATIONS[interpolation], antialias=True
        )
        return _compose(v2.PILToTensor(), cut, *after)
    resized = _resize(resize, crop, interpolation, crop_mode)
    if name == "resize_random_crop":
        return _compose(*resized, v2.RandomCrop(crop), *after)
    if name == "none":
        return _compose(*resized, v2.CenterCrop(crop), *after)
    answer = did_you_mean(name, TRAIN_TRANSFORMS, f"there are {', '.join(TRAIN_TRANSFORMS)}")
    raise ValueError(f"no training transform is called {name!r}; {answer}")


def test_transform(
    *,
    resize: int,
    crop: int,
    interpolation: str = "bilinear",  # noqa: PT028  # this is no test
    crop_mode: str = "center",  # noqa: PT028
) -> Transform:
    """Return the transform that resizes the shorter side and keeps the centre: bytes [3, crop, crop].

    Args:
        interpolation: `bilinear` or `bicubic`, antialiased.
        crop_mode: `center`; or `squash`, which resizes both sides, so that all of an image is seen.

    >>> test_transform(resize=8, crop=6)(Image.new("RGB", (30, 1))).shape
    torch.Size([3, 6, 6])
    """
    return _compose(*_resize(resize, crop, interpolation, crop_mode), v2.CenterCrop(crop))


test_transform.__test__ = False  # type: ignore[attr-defined]  # pytest would mistake it for a test


def slimmed(image: Tensor) -> Tensor:
    """Return the image, its longer side cut at the centre to 16 times the shorter one.

    >>> slimmed(torch.zeros(3, 2, 100)).shape
    torch.Size([3, 2, 32])
    """
    height, width = image.shape[-2:]
    longest = SLIMMEST * min(height, width)
    top, left = max(height - longest, 0) // 2, max(width - longest, 0) // 2
    return image[..., top : top + longest, left : left + longest]


@dataclass
class Batch:
    """Images [N, 3, H, W] of bytes, their labels and items [N], and the paths that could not be decoded."""

    images: Tensor
    labels: Tensor
    items: Tensor
    broken: list[str]

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory; a DataLoader calls this before moving it to a GPU."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


def as_batch(batch: Batch) -> Batch:
    """Return the batch as it is: the `collate_fn` of an ImageDataset, which makes whole batches."""
    return batch


def load_batches(
    images: Dataset[Batch], draws: Any, *, workers: int, pin_memory: bool = False
) -> Iterator[Batch]:
    """Yield a batch per list of draws, made by `workers` processes; their errors are raised unchanged."""
    loader: DataLoader[Batch] = DataLoader(
        images,
        batch_sampler=draws,
        collate_fn=as_batch,  # type: ignore[arg-type]
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
        pin_memory=pin_memory,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # otherwise it would draw from the one that training uses
    )
    try:
        yield from loader
    except (ValueError, OSError) as error:
        text = str(error).strip()
        if not text.startswith("Caught "):  # torch puts the worker's whole traceback into the message
            raise
        raise ValueError(text.splitlines()[-1].partition(": ")[2]) from None


def _start_worker(_: int) -> None:
    """Leave the process group: Ctrl-C reaches all of it, but workers must live until the main process saves.

    Workers also return the freed memory that the main process keeps.
    """
    give_back_memory()
    if os.name == "posix":
        os.setpgid(0, 0)


class ImageDataset(Dataset[Batch]):
    """Batches from draws (item, seed): `DataLoader(dataset, batch_sampler=..., collate_fn=as_batch)`.

    The random transform of a draw depends only on the lower 32 bits of its seed, not on workers, ranks or
    earlier draws.

    Args:
        labels: [N], the class of each image in the store.
        transform: takes randomness from torch's generator, as torchvision's do.
        strict: raise at the first broken image.
        replace: replace a broken image by the next good one of its class, cyclically in the order of items;
            otherwise the batch is smaller.
    """

    def __init__(
        self,
        store: Store,
        labels: Tensor,
        transform: Transform,
        *,
        strict: bool = False,
        replace: bool = True,
    ) -> None:
        if len(store) != len(labels):
            raise ValueError(f"{len(store)} images but {len(labels)} labels; give one label per image")
        self.store, self.labels, self.transform = store, labels, transform
        self.strict, self.replace = strict, replace

    def __len__(self) -> int:
        return len(self.labels)

    def paths_without(self, items: Tensor) -> list[str]:
        """Return the names of all other items: those that could not be read."""
        there = set(items.tolist())
        return [self.store.name(item) for item in range(len(self)) if item not in there]

    def __getitems__(self, draws: list[tuple[int, int]]) -> Batch:
        """Return the batch of these draws; `items` are those actually in it."""
        images: list[Tensor] = []
        items: list[int] = []
        broken: dict[str, None] = {}
        with torch.random.fork_rng(devices=[]):
            for drawn, seed in draws:
                item, image = self._first_whole(drawn, broken)
                if image is not None:
                    # torch.manual_seed takes 100 times as long, and would seed the GPU's generator too.
                    torch.default_generator.manual_seed(seed)
                    images.append(self.transform(image))
                    items.append(item)
            # Only the transform knows the size of the images in an empty batch.
            stacked = torch.stack(images) if images else self.transform(Image.new("RGB", (1, 1)))[None][:0]
        there = torch.tensor(items, dtype=torch.long)
        return Batch(stacked, self.labels[there], there, list(broken))

    def _first_whole(self, item: int, broken: dict[str, None]) -> tuple[int, Image.Image | Tensor | None]:
        """Return the item or its replacement, and the image; add broken images to `broken`."""
        try:
            return item, self.store.read(item)
        except ValueError:
            if self.strict:
                raise
            broken[self.store.name(item)] = None
        if not self.replace:
            return item, None
        members = (self.labels == self.labels[item]).nonzero().flatten().tolist()
        position = members.index(item)
        for other in members[position + 1 :] + members[:position]:
            try:
                return other, self.store.read(other)
            except ValueError:
                broken[self.store.name(other)] = None
        first = self.store.name(members[0])
        raise ValueError(f"no image of the class of {first} can be decoded; fix them or leave the class out")


def _compose(*steps: Callable[..., Tensor]) -> Transform:
    composed: Transform = v2.Compose(list(steps))
    return composed


def _resize(resize: int, crop: int, interpolation: str, crop_mode: str) -> list[Callable[..., Tensor]]:
    if crop > resize:
        raise ValueError(f"a crop of {crop} does not fit into images that are resized to {resize} before")
    size = [resize, resize] if crop_mode == "squash" else [resize]
    return [v2.PILToTensor(), slimmed, v2.Resize(size, INTERPOLATIONS[interpolation], antialias=True)]
