"""softwarp.load(run).embed(images): model, transform and distance in one object."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor

from softwarp.data.given_images import GivenImages, Picture, check_tensor, listed
from softwarp.data.glyphs import SIZE as GLYPH_SIZE
from softwarp.data.images import Transform, test_transform
from softwarp.data.stores import Store
from softwarp.metrics import combine_flipped
from softwarp.metrics.threads import read_ahead
from softwarp.models.backbones import BACKBONES
from softwarp.models.embedder import Embedder
from softwarp.models.preparation import preparation_of
from softwarp.models.weights import load_weights
from softwarp.models.weights_origin import origin_of
from softwarp.names import did_you_mean
from softwarp.runs.choice import Choice
from softwarp.runs.model_folder import WEIGHTS, find_model_folder, read_config
from softwarp.runs.result import Result, read_json_as
from softwarp.runs.run import Run

if TYPE_CHECKING:
    from softwarp.export.write import Exported

BATCH = 64

Given = TypeVar("Given")


class Ready(Protocol):
    """An image that is ready for the network."""

    @property
    def pixels(self) -> Tensor | None: ...  # bytes [channels, crop, crop]; None: it is not to be embedded


ReadyImage = TypeVar("ReadyImage", bound=Ready)


@dataclass(frozen=True)
class ReadImage:
    """The pixels of an image, or why it cannot be read."""

    pixels: Tensor | None = None
    broken: str = ""


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
    source: str = ""  # what `load` was given, if that is enough to load it again
    folder: Path | None = None  # of the run, if it was loaded from one
    pretrained_weights: str = ""  # what the backbone began with: their origin, licence and hash, if known
    interpolation: str = "bilinear"  # or bicubic
    crop_mode: str = "center"  # or squash: both sides are resized, not the shorter one alone
    untrained: bool = False  # its backbone is as it was published: features are kept in the cache

    @property
    def result(self) -> Result:
        """What the run measured: metrics, those before training, and how many classes and images."""
        return Run(self._run_folder()).result()

    @property
    def choice(self) -> Choice | None:
        """Why it is this model: the candidates and what held-out classes said; None if nothing was chosen."""
        folder = self._run_folder()
        within = folder.name.startswith("seed-") or folder.name == "ship"
        chosen = folder.parent if within else folder  # once for all seeds
        file = chosen / "choice" / "choice.json"
        return read_json_as(Choice, file) if file.is_file() else None

    def _run_folder(self) -> Path:
        if self.folder is None:
            raise ValueError("this model was not loaded from a run, so there is no result")
        return self.folder

    def __repr__(self) -> str:
        size = self.network.embedding_size
        return f"EmbeddingModel({size} dimensions, {self.distance}, crop {self.crop}, on {self.device})"

    def embed(
        self,
        images: Picture | Sequence[Picture | Tensor] | Tensor,
        *,
        skip_broken: bool = False,
        batch_size: int = BATCH,
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
            workers: threads that decode; 0 for one per core.
            advance: called with the number of images just done.
        """
        if isinstance(images, Tensor):
            return self._embed_tensor(images, batch_size)
        given = listed(images)
        shape = (self.network.backbone.in_channels, self.crop, self.crop)
        tensors = {
            place: check_tensor(each, shape) for place, each in enumerate(given) if isinstance(each, Tensor)
        }
        pictures = GivenImages(given, shorter_side=self.resize, grey=self._grey())  # type: ignore[arg-type]

        def read(place: int) -> ReadImage:
            return ReadImage(tensors[place]) if place in tensors else self._read(pictures, place)

        embeddings, broken = self._embed(len(given), read, batch_size, workers, advance)
        if broken and not skip_broken:
            reasons = "; ".join(list(broken.values())[:3])
            raise ValueError(
                f"{len(broken)} of {len(given)} images cannot be read ({reasons}); "
                "leave them out, or embed with skip_broken=True, which gives them rows of NaN"
            )
        return embeddings

    def export(self, path: Path | str, *, quantise: bool = False, check: bool = True) -> "Exported":
        """Return what was written to a file for others: .onnx, .pt2 for torch.export, .safetensors for timm.

        Args:
            quantise: int8 weights in linear layers, for CPUs; only for .onnx.
            check: compare the file with torch on about a hundred images of the run, or on random ones, and
                write none that differs by more than rounding.

        `load("runs/birds").export("model.onnx")`
        """
        from softwarp.export.write import write_file

        return write_file(self, Path(path), int8=quantise, check=check)

    def save_pretrained(self, folder: Path | str, *, licence: str | None = None, check: bool = True) -> None:
        """Write a folder that `load` reads, in Hugging Face form: weights, config and a model card.

        Args:
            licence: of the weights, for the model card, like mit.
            check: as in `export`.

        `load("runs/birds").save_pretrained("birds", licence="mit")`
        """
        from softwarp.export.check import images_to_check
        from softwarp.export.write import CHECKED, write_folder

        images = images_to_check(self.source, self, count=CHECKED) if check else None
        write_folder(self, Path(folder), lambda draft: load(draft).embed, licence=licence, images=images)

    def push_to_hub(self, name: str, *, licence: str | None = None) -> str:
        """Upload what `save_pretrained` writes to `user/name` and return its address; a new one is private.

        `load("runs/birds").push_to_hub("me/birds")`
        """
        from softwarp.export.write import upload

        return upload(self, name, licence=licence)

    def embed_store(
        self,
        store: Store,
        *,
        mirrored: bool = False,
        batch_size: int = BATCH,
        workers: int = 0,
        advance: Callable[[int], None] | None = None,
    ) -> tuple[Tensor, list[int]]:
        """Return the embeddings [N, D] of a store's images, and the items that cannot be read: rows of NaN.

        Args:
            mirrored: the mean of the embeddings of each image and of its mirror image.
            workers: threads that decode; 0 for one per core.
        """

        def read(item: int) -> ReadImage:
            return self._read(store, item)

        embeddings, broken = self._embed(len(store), read, batch_size, workers, advance, mirrored=mirrored)
        return embeddings, list(broken)

    def embed_ahead(
        self,
        given: Iterable[Given],
        read: Callable[[Given], ReadyImage],
        *,
        mirrored: bool = False,
        batch_size: int = BATCH,
        workers: int = 0,
    ) -> Iterator[tuple[list[ReadyImage], Tensor]]:
        """Yield batches of what `read` returns, in order, with the embeddings of those that have pixels.

        All images that are not tensors yet are embedded by this: threads read the next two batches while
        the network works on one, and no more are held, however many images there are.

        Args:
            workers: threads; 0 for one per core.
        """
        for batch in read_ahead(given, read, batch_size, workers or os.cpu_count()):
            pixels = [each.pixels for each in batch if each.pixels is not None]
            yield batch, self._forward(pixels, mirrored)

    def _embed(
        self,
        count: int,
        read: Callable[[int], ReadImage],
        batch_size: int,
        workers: int,
        advance: Callable[[int], None] | None,
        *,
        mirrored: bool = False,
    ) -> tuple[Tensor, dict[int, str]]:
        """The embeddings of images 0 to count - 1, and why some of them, rows of NaN, cannot be read."""
        embeddings = torch.full((count, self.network.embedding_size), torch.nan)
        broken: dict[int, str] = {}
        start = 0
        batches = self.embed_ahead(
            range(count), read, mirrored=mirrored, batch_size=batch_size, workers=workers
        )
        for batch, found in batches:
            places = range(start, start + len(batch))
            broken |= {place: each.broken for place, each in zip(places, batch, strict=True) if each.broken}
            embeddings[[place for place in places if place not in broken]] = found
            start += len(batch)
            if advance is not None:
                advance(len(batch))
        return embeddings, broken

    def _read(self, store: Store, item: int) -> ReadImage:
        try:
            return ReadImage(self.seen(store.read(item)))
        except ValueError as error:
            return ReadImage(broken=str(error))

    @torch.no_grad()
    def _forward(self, pixels: Sequence[Tensor], mirrored: bool = False) -> Tensor:
        if not pixels:
            return torch.empty(0, self.network.embedding_size)
        images = torch.stack(list(pixels)).to(self.device)
        embeddings = self.network(images)
        if mirrored:
            embeddings = combine_flipped(embeddings, self.network(images.flip(3)))
        return embeddings.float().cpu()  # type: ignore[no-any-return]

    def seen(self, image: Image.Image | Tensor) -> Tensor:
        """Return an image as `network` sees it, grey where it reads one channel."""
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
        return test_transform(
            resize=self.resize, crop=self.crop, interpolation=self.interpolation, crop_mode=self.crop_mode
        )

    def _grey(self) -> bool:
        return self.network.backbone.in_channels == 1

    @torch.no_grad()
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
    place = _device(device)
    if not Path(run).exists() and _is_backbone(str(run)):
        model = pretrained(str(run), weights=weights, device=place)
        origin = origin_of(str(run), str(weights) if weights else True)
        return replace(model, source="" if weights else str(run), pretrained_weights=str(origin or ""))
    if weights is not None:
        raise ValueError(f"weights belong to a backbone by its name, like iresnet100; {run} has its own")
    exported = find_model_folder(run)
    if exported is not None:
        return replace(_from_model_folder(exported, place), source=str(run))
    if not Path(run).exists():
        raise FileNotFoundError(_what_it_may_be(str(run)))
    folder = Run(Path(run))
    recipe, result = folder.recipe(), folder.result()
    network = Embedder(**recipe.model.plain())
    network.load_state_dict(folder.load_model())
    glyphs, origin = recipe.data.name == "glyphs", folder.weights()
    return EmbeddingModel(
        network.to(place).eval(),
        distance=result.distance,
        resize=GLYPH_SIZE if glyphs else recipe.data.resize,
        crop=GLYPH_SIZE if glyphs else recipe.data.crop,
        device=place,
        source=str(run),
        folder=folder.folder,
        pretrained_weights=str(origin or ""),
        interpolation=recipe.data.interpolation,
        crop_mode=recipe.data.crop_mode,
    )


def _device(given: str | torch.device | None) -> torch.device:
    return torch.device(given or ("cuda" if torch.cuda.is_available() else "cpu"))


def _is_backbone(name: str) -> bool:
    import timm

    return name in BACKBONES or bool(timm.is_model(name))


def _what_it_may_be(name: str) -> str:
    import timm

    folders = [str(each) for each in Path(name).parent.glob("*/") if (each / "result.json").is_file()]
    known = [*folders, *BACKBONES, *timm.list_models()]
    answer = did_you_mean(name, known, "train one with `softwarp train`")
    return f"{name} is neither a run's folder nor a network that timm knows; {answer}"


def pretrained(
    name: str,
    *,
    pooling: str = "native",
    weights: Path | str | None = None,
    device: str | torch.device | None = None,
) -> EmbeddingModel:
    """Return a backbone's pooled features after layer norm: what training starts from and has to beat.

    Images are prepared as the network is used to. Features of an iResNet, which are embeddings already, are
    returned as they are; with a wide stem, which only the warped softmax's authors train, their distance is
    Euclidean.
    """
    place = _device(device)
    seen = preparation_of(name)
    face = name.startswith("iresnet")
    network = Embedder(
        name,
        None,
        pretrained=True if weights is None else str(weights),
        pooling=pooling,
        norm="none" if face else "before",
        head="none",
    )
    return EmbeddingModel(
        network.to(place).eval(),
        distance="euclidean" if face and name.endswith("_wide_stem") else "cosine",
        resize=seen.resize,
        crop=seen.crop,
        device=place,
        interpolation=seen.interpolation,
        crop_mode=seen.crop_mode,
        untrained=True,
    )


def _from_model_folder(folder: Path, device: torch.device) -> EmbeddingModel:
    config = read_config(folder)
    network = Embedder(**config.model.plain())
    load_weights(network, folder / WEIGHTS)
    return EmbeddingModel(
        network.to(device).eval(),
        config.distance,
        resize=config.resize,
        crop=config.crop,
        device=device,
        pretrained_weights=config.pretrained_weights,
        interpolation=config.resampling,
        crop_mode=config.crop_mode,
        untrained=config.untrained,
    )
