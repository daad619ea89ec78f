"""softwarp.load(run).embed(images): model, transform and distance in one object."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional

from softwarp.data.decode import as_rgb, read_image
from softwarp.data.glyphs import SIZE as GLYPH_SIZE
from softwarp.data.images import Batch, Transform, test_transform
from softwarp.evaluate import embed_images
from softwarp.models.embedder import Embedder
from softwarp.runs import Run

Picture = Path | str | Image.Image


@dataclass(frozen=True)
class EmbeddingModel:
    """A trained model with all that its embeddings depend on; made by `load`.

    Compare embeddings by `distance`, "euclidean" or "cosine". `network` is the bare torch module: bytes
    [N, channels, crop, crop] in, embeddings out.
    """

    network: Embedder
    distance: str
    resize: int  # of the shorter side, before the crop
    crop: int
    device: torch.device

    @torch.no_grad()
    def embed(
        self,
        images: Picture | Sequence[Picture] | Tensor,
        *,
        skip_broken: bool = False,
        batch_size: int = 128,
        workers: int = 0,
        advance: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the embeddings [N, D] of images, on the CPU, in the order given.

        Args:
            images: files, PIL images, or one of either, resized and cropped as the run's evaluation did; or
                bytes [N, channels, H, W] (uint8), taken as they are.
            skip_broken: an image that cannot be read gets a row of NaN instead of ending in a ValueError.
            workers: processes that decode.
            advance: called with the number of images just done.
        """
        if isinstance(images, Tensor):
            return self._embed_tensor(images, batch_size)
        pictures = [images] if isinstance(images, Path | str | Image.Image) else list(images)
        if not pictures:
            return torch.empty(0, self.network.head.out_features)
        inputs = _Pictures(pictures, test_transform(resize=self.resize, crop=self.crop), self)
        found, rows = embed_images(
            self.network, inputs, device=self.device, workers=workers, batch_size=batch_size, advance=advance
        )
        broken = inputs.paths_without(rows)
        if broken and not skip_broken:
            raise ValueError(
                f"{len(broken)} of {len(pictures)} images cannot be read: {', '.join(broken[:3])}; leave "
                "them out, or take skip_broken=True, which gives them rows of NaN"
            )
        embeddings = torch.full((len(pictures), self.network.head.out_features), torch.nan)
        embeddings[rows] = found
        return embeddings

    def _embed_tensor(self, images: Tensor, batch_size: int) -> Tensor:
        if images.dtype != torch.uint8:
            raise ValueError(f"tensors of images must be bytes 0..255 (uint8), got {images.dtype}")
        batches = (images[None] if images.ndim == 3 else images).split(batch_size)
        return torch.cat([self.network(batch.to(self.device)).float().cpu() for batch in batches])


def load(run: Path | str, *, device: str | torch.device | None = None) -> EmbeddingModel:
    """Return the trained model of a run folder, ready to embed images.

    Args:
        device: else the GPU if there is one, else the CPU.
    """
    folder = Run(Path(run))
    recipe, result = folder.recipe(), folder.result()
    network = Embedder(**recipe.model.model_dump() | {"pretrained": False})
    network.load_state_dict(folder.load_model())
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    glyphs = recipe.data.name == "glyphs"
    return EmbeddingModel(
        network.to(place).eval(),
        distance=result.distance,
        resize=GLYPH_SIZE if glyphs else recipe.data.resize,
        crop=GLYPH_SIZE if glyphs else recipe.data.crop,
        device=place,
    )


class _Pictures(Dataset[Batch]):
    """Files and PIL images as a data set; those that cannot be read are left out of a batch."""

    def __init__(self, pictures: Sequence[Picture], transform: Transform, model: EmbeddingModel) -> None:
        self.pictures, self.transform = pictures, transform
        self.resize, self.grey = model.resize, model.network.backbone.in_channels == 1

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitems__(self, draws: list[tuple[int, int]]) -> Batch:
        images, items, broken = [], [], []
        for item, _ in draws:
            try:
                image = self.transform(self._read(self.pictures[item]))
            except (ValueError, OSError) as error:
                broken.append(str(error))
                continue
            images.append(functional.rgb_to_grayscale(image) if self.grey else image)
            items.append(item)
        blank = self.transform(Image.new("RGB", (1, 1)))[None][:0]
        stacked = torch.stack(images) if images else blank
        rows = torch.tensor(items, dtype=torch.long)
        return Batch(stacked, torch.zeros_like(rows), rows, broken)

    def _read(self, picture: Picture) -> Image.Image:
        if isinstance(picture, Image.Image):
            return as_rgb(picture)
        return read_image(Path(picture), shorter_side=self.resize)

    def paths_without(self, items: Tensor) -> list[str]:
        there = set(items.tolist())
        return [str(picture) for place, picture in enumerate(self.pictures) if place not in there]
