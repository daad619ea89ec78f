"""softwarp.load(run).embed(images): model, transform and distance in one object."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from softwarp.data.given_images import GivenImages, Picture, check_tensor, listed
from softwarp.data.glyphs import SIZE as GLYPH_SIZE
from softwarp.data.images import ImageDataset, Transform, test_transform
from softwarp.data.stores import Store
from softwarp.evaluation import embed_images
from softwarp.metrics import combine_flipped
from softwarp.models.backbones import BACKBONES, TimmBackbone, build_backbone
from softwarp.models.embedder import Embedder
from softwarp.models.iresnet import SIDE, IResNet
from softwarp.models.weights import load_weights
from softwarp.runs.choice import Choice
from softwarp.runs.model_folder import WEIGHTS, find_model_folder, read_config
from softwarp.runs.run import Result, Run, read_json_as


@dataclass(frozen=True)
class EmbeddingModel:
    """A trained model with everything its embeddings depend on; made by `load`.

    Compare embeddings by `distance`, "euclidean" or "cosine". `network` is the bare torch module: bytes
    [N, channels, crop, crop] in, embeddings out.
    """

    network: Embedder
    distance: str
    resize: int  # of the shorter side, before the crop
    crop: int
    device: torch.device
    folder: Path | None = None  # of the run, if it was loaded from one

    @property
    def result(self) -> Result:
        """What the run measured: metrics, those before training, and how many classes and images."""
        return Run(self._run_folder()).result()

    @property
    def choice(self) -> Choice | None:
        """Why it is this model: the candidates and what held-out classes said; None if nothing was chosen."""
        file = self._run_folder() / "choice" / "choice.json"
        return read_json_as(Choice, file) if file.is_file() else None

    def _run_folder(self) -> Path:
        if self.folder is None:
            raise ValueError("this model was not loaded from a run, so there is no result")
        return self.folder

    def __repr__(self) -> str:
        size = self.network.embedding_size
        return f"EmbeddingModel({size} dimensions, {self.distance}, crop {self.crop}, on {self.device})"

    @torch.no_grad()
    def embed(
        self,
        images: Picture | Sequence[Picture | Tensor] | Tensor,
        *,
        skip_broken: bool = False,
        batch_size: int = 128,
        workers: int = 0,
        advance: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the embeddings [N, D] of images, on the CPU, in the order given.

        Args:
            images: one or a list of: paths, the bytes of an image file, PIL images, or NumPy arrays of bytes
                [H, W, 3], [H, W, 4] or [H, W] (uint8). They are resized and cropped as the run's evaluation
                did. Tensors [N, channels, H, W] of bytes are used as they are, and so are those in a list,
                [channels, crop, crop].
            skip_broken: give an unreadable image a row of NaN instead of raising a ValueError.
            workers: processes that decode.
            advance: called with the number of images just done.
        """
        if isinstance(images, Tensor):
            return self._embed_tensor(images, batch_size)
        given = listed(images)
        if not any(isinstance(each, Tensor) for each in given):
            return self._embed_pictures(given, skip_broken, batch_size, workers, advance)  # type: ignore[arg-type]
        shape = (self.network.backbone.in_channels, self.crop, self.crop)
        ready = {
            place: check_tensor(each, shape) for place, each in enumerate(given) if isinstance(each, Tensor)
        }
        others = {place: each for place, each in enumerate(given) if not isinstance(each, Tensor)}
        embeddings = torch.empty(len(given), self.network.embedding_size)
        embeddings[list(ready)] = self._embed_tensor(torch.stack(list(ready.values())), batch_size)
        if others:
            embeddings[list(others)] = self._embed_pictures(
                list(others.values()), skip_broken, batch_size, workers, advance
            )
        return embeddings

    def _embed_pictures(
        self,
        pictures: Sequence[Picture],
        skip_broken: bool,
        batch_size: int,
        workers: int,
        advance: Callable[[int], None] | None,
    ) -> Tensor:
        if not pictures:
            return torch.empty(0, self.network.embedding_size)
        store = GivenImages(pictures, shorter_side=self.resize, grey=self._grey())
        embeddings, broken = self.embed_store(store, batch_size=batch_size, workers=workers, advance=advance)
        if broken and not skip_broken:
            raise ValueError(
                f"{len(broken)} of {len(pictures)} images cannot be read ({causes(store, broken[:3])}); "
                "leave them out, or embed with skip_broken=True, which gives them rows of NaN"
            )
        return embeddings

    @torch.no_grad()
    def embed_store(
        self,
        store: Store,
        *,
        mirrored: bool = False,
        batch_size: int = 128,
        workers: int = 0,
        advance: Callable[[int], None] | None = None,
    ) -> tuple[Tensor, list[int]]:
        """Return the embeddings [N, D] of a store's images, and the items that cannot be read: rows of NaN.

        Args:
            mirrored: the mean of the embeddings of each image and of its mirror image.
        """

        def both(images: Tensor) -> Tensor:
            return combine_flipped(self.network(images), self.network(images.flip(3)))

        labels = torch.zeros(len(store), dtype=torch.long)
        inputs = ImageDataset(store, labels, self._seen, replace=False)
        found, rows = embed_images(
            both if mirrored else self.network,
            inputs,
            device=self.device,
            workers=workers,
            batch_size=batch_size,
            advance=advance,
        )
        embeddings = torch.full((len(store), self.network.embedding_size), torch.nan)
        embeddings[rows] = found.view(-1, embeddings.shape[1])
        return embeddings, sorted(set(range(len(store))) - set(rows.tolist()))

    def _seen(self, image: Image.Image | Tensor) -> Tensor:
        """An image as `network` sees it, grey where it reads one channel."""
        if self._grey() and isinstance(image, Image.Image):
            image = image.convert("L")
        return self._transform(image)

    def read(self, picture: Picture) -> Image.Image:
        """Return an image, upright, in the colours that `network` reads; or a ValueError if it is broken."""
        return GivenImages([picture], shorter_side=self.resize, grey=self._grey()).read(0)

    def transform(self, image: Image.Image) -> Tensor:
        """Return what `read` returned as bytes [channels, crop, crop], resized and cropped."""
        return self._transform(image)

    @cached_property
    def _transform(self) -> Transform:
        return test_transform(resize=self.resize, crop=self.crop)

    def _grey(self) -> bool:
        return self.network.backbone.in_channels == 1

    def _embed_tensor(self, images: Tensor, batch_size: int) -> Tensor:
        if images.dtype != torch.uint8:
            raise ValueError(f"tensors of images must be bytes 0..255 (uint8), got {images.dtype}")
        batches = (images[None] if images.ndim == 3 else images).split(batch_size)
        return torch.cat([self.network(batch.to(self.device)).float().cpu() for batch in batches])


def load(
    run: Path | str, *, device: str | torch.device | None = None, weights: Path | str | None = None
) -> EmbeddingModel:
    """Return a trained model, or a pretrained one by its name, ready to embed images.

    Args:
        run: a run folder; a folder that `softwarp export --to hf` wrote, or the name of one on Hugging Face's
            hub, `user/name`; or `efficientnet_lite0` or any timm name for pretrained features without
            training.
        device: by default the GPU if there is one, otherwise the CPU.
        weights: of a backbone that is given by its name, from a local file: `iresnet100` with a checkpoint of
            insightface, for example.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if not Path(run).exists() and _is_backbone(str(run)):
        return _pretrained(str(run), place, weights)
    if weights is not None:
        raise ValueError(f"weights belong to a backbone by its name, like iresnet100; {run} has its own")
    exported = find_model_folder(run)
    if exported is not None:
        return _from_model_folder(exported, place)
    if not Path(run).exists():
        raise FileNotFoundError(_what_it_may_be(str(run)))
    folder = Run(Path(run))
    recipe, result = folder.recipe(), folder.result()
    network = Embedder(**recipe.model.model_dump() | {"pretrained": False})
    network.load_state_dict(folder.load_model())
    glyphs = recipe.data.name == "glyphs"
    return EmbeddingModel(
        network.to(place).eval(),
        distance=result.distance,
        resize=GLYPH_SIZE if glyphs else recipe.data.resize,
        crop=GLYPH_SIZE if glyphs else recipe.data.crop,
        device=place,
        folder=folder.folder,
    )


def _is_backbone(name: str) -> bool:
    import timm

    return name in BACKBONES or bool(timm.is_model(name))


def _what_it_may_be(name: str) -> str:
    import timm

    folders = [str(each) for each in Path(name).parent.glob("*/") if (each / "result.json").is_file()]
    near = get_close_matches(name, [*folders, *BACKBONES, *timm.list_models()], n=1)
    answer = f"did you mean {near[0]}?" if near else "train one with `softwarp train`"
    return f"{name} is neither a run's folder nor a network that timm knows; {answer}"


def _pretrained(name: str, device: torch.device, weights: Path | str | None) -> EmbeddingModel:
    """Return a backbone's pooled features after layer norm: what training starts from and has to beat.

    Those of an iResNet, which are embeddings already, are returned as they are; with a wide stem, which only
    the warped softmax's authors train, their distance is Euclidean.
    """
    known = build_backbone(name)
    channels = known.channels
    source: bool | str = True if weights is None else str(weights)
    if isinstance(known, IResNet):
        network = Embedder(name, channels, pretrained=source, pooling="avg", norm="none", head="none")
        distance = "euclidean" if known.wide_stem else "cosine"
        return EmbeddingModel(network.to(device).eval(), distance, resize=SIDE, crop=SIDE, device=device)
    network = Embedder(name, channels, pretrained=source, head="none")
    backbone = network.backbone
    config: Any = backbone.model.pretrained_cfg if isinstance(backbone, TimmBackbone) else {}
    crop = int(config.get("input_size", (3, 224, 224))[-1])
    return EmbeddingModel(
        network.to(device).eval(),
        distance="cosine",
        resize=max(crop, round(crop / float(config.get("crop_pct", 0.875)))),
        crop=crop,
        device=device,
    )


def _from_model_folder(folder: Path, device: torch.device) -> EmbeddingModel:
    config = read_config(folder)
    network = Embedder(**config.model.model_dump() | {"pretrained": False})
    load_weights(network, folder / WEIGHTS)
    return EmbeddingModel(
        network.to(device).eval(), config.distance, resize=config.resize, crop=config.crop, device=device
    )


def causes(store: Store, items: Sequence[int]) -> str:
    """Return why these images cannot be read; each names its file."""
    found = []
    for item in items:
        try:
            store.read(item)
        except ValueError as error:
            found.append(str(error))
    return "; ".join(found)
