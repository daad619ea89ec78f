"""What a run is: validated data, model, loss, batches, optimizer, phases and evaluation."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from softwarp.recipe.part import Part, Share
from softwarp.recipe.phases import TRAVELLING, EvaluationPart, OptimizerPart, Phase

Interpolation = Literal["bilinear", "bicubic"]
CropMode = Literal["center", "squash"]


class DataPart(Part):
    """Which images, and how they are prepared for the model."""

    name: Literal["glyphs", "cub", "cars", "sop", "inshop", "folder", "csv", "records", "shards"] = Field(
        "glyphs", description="the data set or its layout (data.md); glyphs are built in"
    )
    root: str | None = Field(None, description="the data set's folder, or the CSV file; glyphs need none")
    depth: int | None = Field(
        None, ge=1, description="layout folder: how many folders name the class, at most; null: all of them"
    )
    max_classes: int | None = Field(
        None, ge=2, description="trains on at most this many classes, and judges at most this many"
    )
    train_transform: Literal["random_resized_crop", "resize_random_crop", "none"] = Field(
        "random_resized_crop",
        description="how training images are cropped; none: as in evaluation, without random crops or flips",
    )
    resize: int = Field(256, ge=1, description="shorter side in pixels, before the crop")
    crop: int = Field(224, ge=1, description="side in pixels of the square that the model sees")
    interpolation: Interpolation = Field("bilinear", description="how pixels are resized")
    crop_mode: CropMode = Field(
        "center",
        description="center: the shorter side is resized and the centre kept; squash: both sides are resized",
    )
    scale: tuple[float, float] = Field(
        (0.08, 1.0), description="smallest and largest share of the area that random_resized_crop takes"
    )
    color_jitter: tuple[Share, Share, Share, Annotated[float, Field(ge=0, le=0.5)]] | None = Field(
        None, description="how much brightness, contrast, saturation and hue vary at random"
    )
    erase: Share = Field(0.0, description="share of training images with a random rectangle erased")
    cache: bool = Field(False, description="decode and resize once, and keep the pixels in the cache folder")
    strict: bool = Field(False, description="stop at a broken image instead of skipping and counting it")
    workers: int | None = Field(
        None, ge=0, description="processes that decode images; null: chosen for the machine"
    )

    def uncached(self) -> "DataPart":
        """Return the same without a cache, for work that decodes few images or none."""
        return self.model_copy(update={"cache": False})

    @model_validator(mode="after")
    def _sizes(self) -> "DataPart":
        if self.crop > self.resize:
            raise ValueError(
                f"a crop of {self.crop} does not fit into images that are resized to {self.resize} before; "
                f"set data.resize={self.crop} or more as well, or a crop of at most {self.resize}"
            )
        if self.cache and self.crop_mode == "squash":
            raise ValueError("cache keeps the shape of images, but crop_mode squash does not; drop one")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"scale must be two shares of the area in order, like [0.08, 1.0]; got {self.scale}"
            )
        return self


class AdapterPart(Part):
    """Small matrices, trained beside the frozen linear layers of a backbone and merged at the end."""

    kind: Literal["lora"] = Field("lora", description="low-rank adapters (Hu et al. 2022), by peft")
    rank: int = Field(8, ge=1, description="rank of the product that is added to each layer")
    alpha: int | None = Field(
        None, ge=1, description="the product counts alpha / rank times; null: twice the rank"
    )
    dropout: Share = Field(0.0, description="share of an adapter's inputs that training drops")


class ModelPart(Part):
    """backbone -> pooling -> linear, with a layer norm before or after the linear layer."""

    backbone: str = Field(
        "small_conv",
        description="the network: small_conv, efficientnet_lite0, bn_inception, iresnet18 to iresnet100, or "
        "any timm name",
    )
    pretrained: bool | str = Field(False, description="true: ImageNet weights; or a file with weights")
    embedding_size: int = Field(
        128, ge=1, le=65536, description="dimensions of an embedding; with head none, of the pooled features"
    )
    pooling: Literal["native", "token+mean", "max+avg", "avg", "max", "gem"] = Field(
        "native",
        description="how features become one vector; native: the backbone's own way, token+mean: class token "
        "and mean of the patches side by side, the others: of the map or the patches",
    )
    norm: Literal["before", "after", "none"] = Field(
        "before", description="where the layer norm stands: before the linear layer, after it, or nowhere"
    )
    head: Literal["linear", "none"] = Field(
        "linear", description="the last layer; none: the pooled features are the embedding"
    )
    head_init: Literal["kaiming", "default", "pca", "whitened"] = Field(
        "kaiming",
        description="how the linear layer starts; pca: at the principal directions of the training images' "
        "features; whitened: minus their mean and whitened within classes, as `start` says",
    )
    unit_length: bool = Field(False, description="scale embeddings to length 1, whatever the distance")
    freeze_batch_norm: bool = Field(
        False, description="leave batch norm as it is; for fine-tuning with small batches"
    )
    freeze_stages: int = Field(
        0, ge=0, description="the first stages of the backbone, stem included, that stay as they are"
    )
    drop_path: Share = Field(
        0.0,
        description="share of residual branches that training skips in the last block; less in earlier ones",
    )
    adapter: AdapterPart | None = Field(
        None, description="trains adapters instead of the backbone's own weights, like {rank: 8}"
    )
    train_normalization: Literal["same", "imagenet"] = Field(
        "same",
        description="imagenet: normalise pixels by ImageNet's mean and deviation while training; evaluation "
        "keeps the backbone's own",
    )

    @model_validator(mode="after")
    def _head_to_start(self) -> "ModelPart":
        if self.head_init in ("pca", "whitened") and self.head == "none":
            raise ValueError(
                f"head_init {self.head_init} needs a linear layer, but head none has no such layer; drop one"
            )
        return self

    @model_validator(mode="after")
    def _adapter_or_stages(self) -> "ModelPart":
        if self.adapter is not None and self.freeze_stages:
            raise ValueError("adapter freezes the whole backbone already; omit freeze_stages")
        return self

    def plain(self) -> dict[str, Any]:
        """Return the arguments of an Embedder for trained weights: nothing to load or to adapt."""
        return self.model_dump() | {"pretrained": False, "adapter": None}


class StartPart(Part):
    """The head before training with head_init whitened, from features that the backbone gives once."""

    shrinkage: float | None = Field(
        10.0,
        gt=0,
        description="of the covariance within classes that features are whitened by; null: infinite, so that "
        "only the mean is subtracted",
    )
    loss: Literal["normalized_softmax", "proxy_nca_pp", "euclidean_softmax", "warped_softmax"] | None = Field(
        None, description="the loss that then trains the head alone on these features; null: none"
    )
    steps: int = Field(0, ge=0, description="steps of that training")
    learning_rate: float = Field(3e-4, gt=0, description="its learning rate")

    @model_validator(mode="after")
    def _trains_by_a_loss(self) -> "StartPart":
        if self.steps and self.loss is None:
            raise ValueError(f"{self.steps} steps need a loss that trains the head; give start.loss")
        return self


class LossPart(Part):
    """Which loss, and its settings."""

    name: str = Field(description="a loss that `softwarp losses` lists, or your own: FILE.py:CLASS")
    code: str | None = Field(
        None, description="SHA-256 of that FILE, which runs write; a file that has changed is refused"
    )
    proxy_init: Literal["means"] | None = Field(
        None, description="means: proxies start at the class means of the untrained model's embeddings"
    )
    sharded: bool = Field(
        False, description="divide the classes over the processes, for a softmax over very many of them"
    )
    sample_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="with sharded: the share of all classes, those of the batch included, that a step takes "
        "into account; the other rows are left alone",
    )
    weight: float = Field(1.0, gt=0, description="multiplies the loss, and so its gradients")
    settings: dict[str, bool | int | float | str | list[int | float]] = Field(
        {}, description="the loss's own settings; `softwarp losses NAME` lists them with their defaults"
    )

    @model_validator(mode="after")
    def _samples_what_is_sharded(self) -> "LossPart":
        if self.sample_rate < 1 and not self.sharded:
            raise ValueError("sample_rate needs sharded: true, also in one process")
        return self

    @field_validator("settings")
    @classmethod
    def _known_already(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key, place in (("num_classes", "the data"), ("embedding_size", "model.embedding_size")):
            if key in settings:
                raise ValueError(f"{key} follows from {place}; omit it")
        return settings

    @model_serializer(mode="wrap")
    def _without_code_unless_own(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key != "code" or value is not None}


class BatchPart(Part):
    """What a batch holds: `classes` x `samples`, or `size` random images."""

    classes: int | None = Field(None, ge=1, description="classes in a batch")
    samples: int | None = Field(None, ge=1, description="samples of each class in a batch")
    size: int | None = Field(None, ge=1, description="random images in a batch, instead of classes x samples")
    draw: Literal["rounds", "independent"] = Field(
        "rounds",
        description="rounds: every class comes once before any comes again; independent: each batch draws "
        "its classes independently, and small classes give what they have, as in the authors' code",
    )
    per_epoch: int | None = Field(
        None, ge=1, description="batches in an epoch; null: as many as show nearly every image once"
    )
    accumulate: int = Field(1, ge=1, description="number of equal pieces in which a batch is processed")

    @model_validator(mode="before")
    @classmethod
    def _balanced_unless_said(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("size") is not None:
            return given
        return {"classes": 32, "samples": 4} | given

    @model_validator(mode="after")
    def _divides(self) -> "BatchPart":
        if self.size is not None and (self.classes or self.samples):
            raise ValueError(
                f"size {self.size} draws random images: omit classes and samples, or set batches.size=null"
            )
        if self.size is not None and self.draw != "rounds":
            raise ValueError(f"draw {self.draw} is for classes x samples; omit it, or set batches.size=null")
        if self.size is None and not (self.classes and self.samples):
            raise ValueError("give classes and samples, or size")
        if (self.size or self.classes or 0) % self.accumulate:
            raise ValueError(
                f"accumulate {self.accumulate} must divide the "
                + (f"{self.size} images of a batch" if self.size else f"{self.classes} classes of a batch")
            )
        return self


class Recipe(Part):
    """All that a run is made from; `softwarp.load_recipe` reads one, `softwarp.train` trains it."""

    paper: dict[str, Any] = Field(
        {}, description="evidence for the recipe: published figures, sources, differences; no settings"
    )
    data: DataPart = DataPart()
    model: ModelPart = ModelPart()
    start: StartPart = StartPart()
    loss: LossPart
    batches: BatchPart = BatchPart()
    optimizer: OptimizerPart = OptimizerPart()
    phases: tuple[Phase, ...] = Field(min_length=1)
    evaluation: EvaluationPart = EvaluationPart()
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="precision of the network; losses compute in at least float32"
    )
    checkpoint_minutes: float = Field(5.0, gt=0, description="minutes between checkpoints within an epoch")
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        (), description="where else figures are logged"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of weights, batches and augmentation")

    @model_validator(mode="after")
    def _travel_is_bounded(self) -> "Recipe":
        travels = any(phase.proxy_travel for phase in self.phases)
        if travels and (self.optimizer.name not in TRAVELLING or self.optimizer.eps > 1e-4):
            raise ValueError(
                "proxy_travel needs adam, adamw or rmsprop with eps of at most 1e-4, whose steps have a "
                f"known length, not {self.optimizer.name} with eps {self.optimizer.eps}; give a "
                "proxy_learning_rate"
            )
        return self

    @model_validator(mode="after")
    def _pulls_whole_weights(self) -> "Recipe":
        if self.model.adapter is not None and self.optimizer.l2_sp:
            raise ValueError(
                "l2_sp pulls the backbone's weights back, but an adapter leaves them; omit l2_sp"
            )
        return self

    @model_validator(mode="after")
    def _never_on_test(self) -> "Recipe":
        guided = self.evaluation.patience or any(phase.schedule == "plateau" for phase in self.phases)
        if guided and self.evaluation.split == "test":
            raise ValueError(
                "patience and schedule plateau follow a metric, but test classes must not guide training; "
                "run with evaluation.split validation, then set epochs and schedule step accordingly"
            )
        epochs = sum(phase.epochs for phase in self.phases)
        if guided and not 1 <= self.evaluation.every <= epochs:
            raise ValueError(f"patience and schedule plateau need evaluation.every between 1 and {epochs}")
        return self


PARTS: dict[str, type[Part]] = {
    "": Recipe,
    "data": DataPart,
    "model": ModelPart,
    "start": StartPart,
    "loss": LossPart,
    "batches": BatchPart,
    "optimizer": OptimizerPart,
    "phases.0": Phase,
    "evaluation": EvaluationPart,
}


def parse_recipe(settings: Any, source: str = "recipe", changes: Sequence[str] = ()) -> Recipe:
    """Return the validated recipe; a ValueError lists everything wrong, with the nearest known keys.

    Args:
        source: where the settings come from, named with what is wrong.
        changes: KEY=VALUE from the command line, applied to them already.

    >>> parse_recipe({"loss": {"nane": "warped_softmax"}, "phases": []})
    Traceback (most recent call last):
    ...
    ValueError: recipe: loss.name: Field required
    recipe: loss.nane: no such key; did you mean loss.name?
    recipe: phases: Tuple should have at least 1 item after validation, not 0
    """
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        lines = [f"{_origin(problem, source, changes)}: {_explain(problem)}" for problem in error.errors()]
        raise ValueError("\n".join(lines)) from None


def _origin(problem: Any, source: str, changes: Sequence[str]) -> str:
    """Return who set what is wrong: the command line, or the source."""
    place = ".".join(map(str, problem["loc"])) + "."
    changed = any(place.startswith(change.partition("=")[0] + ".") for change in changes)
    return "command line" if changed else source


def _explain(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":
        key = "loss.name" if place == "loss" else f"{place}.KEY"
        return f"{place} has keys of its own; did you mean {key}={problem['input']}?"
    if problem["type"] != "extra_forbidden":
        given = problem["input"]
        shown = f"={given}" if isinstance(given, str | int | float | bool) else ""
        return f"{place}{shown}: {message}" if place else message
    meant = _meant(*place.rpartition(".")[::2])
    return f"{place}: no such key" + (f"; did you mean {' or '.join(meant)}?" if meant else "")


def _meant(part: str, key: str) -> list[str]:
    """Return the full keys that an unknown key of this part may have meant."""
    everywhere = {name for each in PARTS.values() for name in each.model_fields}
    here = get_close_matches(key, PARTS.get(part, Phase).model_fields, n=1)
    if here and key not in everywhere:
        return [f"{part}.{here[0]}".lstrip(".")]
    if part == "loss":
        return [f"loss.settings.{key}"]
    near = get_close_matches(key, everywhere, n=1)
    return [
        f"{place}.{name}".lstrip(".") for name in near for place in PARTS if name in PARTS[place].model_fields
    ]
