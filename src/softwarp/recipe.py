"""What a run is: validated data, model, loss, batches, optimizer, phases and evaluation."""

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from softwarp.data.splits import SplitPlan


class Part(BaseModel):
    """A piece of a recipe. A key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0, le=1)]


class DataPart(Part):
    """Which images, and what becomes of them on the way to the model."""

    name: Literal["glyphs", "cub", "cars", "sop", "inshop", "folder", "csv"] = "glyphs"
    root: str | None = Field(None, description="folder of the data set, or the CSV file; glyphs need none")
    depth: int | None = Field(
        None, ge=1, description="layout folder: how deep class folders lie below the root or a split; else 1"
    )
    max_classes: int | None = Field(None, ge=2, description="use no more training and evaluation classes")
    train_transform: Literal["random_resized_crop", "resize_random_crop"] = "random_resized_crop"
    resize: int = Field(256, ge=1, description="shorter side before the crop")
    crop: int = Field(224, ge=1, description="side of what the model sees")
    scale: tuple[float, float] = Field((0.08, 1.0), description="area of a random_resized_crop")
    color_jitter: tuple[Share, Share, Share, Annotated[float, Field(ge=0, le=0.5)]] | None = Field(
        None, description="by how much brightness, contrast, saturation and hue change at random"
    )
    erase: Share = Field(0.0, description="share of training images that lose a random rectangle")
    cache: bool = Field(False, description="decode and resize once, keep the pixels in the cache folder")
    strict: bool = Field(False, description="stop at a broken image instead of skipping and counting it")
    workers: int | None = Field(None, ge=0, description="processes that decode; chosen when not given")

    @model_validator(mode="after")
    def _sizes(self) -> "DataPart":
        if self.crop > self.resize:
            raise ValueError(f"crop is {self.crop} but resize only {self.resize}; lower crop or raise resize")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be two shares of the area, like [0.08, 1.0]; got {self.scale}")
        return self


class ModelPart(Part):
    """backbone -> pooling -> linear, with a layer norm before or after the linear layer."""

    backbone: str = "small_conv"
    pretrained: bool | str = Field(False, description="true: ImageNet weights; or a file with weights")
    embedding_size: int = Field(128, ge=1, le=65536)
    pooling: Literal["max+avg", "avg", "max", "gem"] = "max+avg"
    norm: Literal["before", "after", "none"] = "before"
    head: Literal["linear", "none"] = Field("linear", description="none: the pooled features as they are")
    head_init: Literal["kaiming", "default", "pca"] = Field(
        "kaiming", description="pca: principal directions of the training images' features"
    )
    freeze_batch_norm: bool = False

    @model_validator(mode="after")
    def _head_to_start(self) -> "ModelPart":
        if self.head_init == "pca" and self.head == "none":
            raise ValueError("head_init pca starts a linear layer, and head none has no such layer; drop one")
        return self


class LossPart(Part):
    name: str
    proxy_init: Literal["means"] | None = Field(
        None, description="means: proxies start at the class means of the first embeddings"
    )
    settings: dict[str, bool | int | float | str | list[int | float]] = {}

    @field_validator("settings")
    @classmethod
    def _known_already(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key, place in (("num_classes", "the data"), ("embedding_size", "model.embedding_size")):
            if key in settings:
                raise ValueError(f"{key} follows from {place}; leave it out")
        return settings


class BatchPart(Part):
    """`classes` x `samples`, 32 x 4 where nothing is said, or `size` images at random."""

    classes: int | None = Field(None, ge=1, description="classes in a batch")
    samples: int | None = Field(None, ge=1, description="samples of each class in a batch")
    size: int | None = Field(None, ge=1, description="images at random, in place of classes x samples")
    accumulate: int = Field(1, ge=1, description="equal pieces that a batch is worked through in")

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
                f"size {self.size} draws at random: leave classes and samples out, or set batches.size=null"
            )
        if self.size is None and not (self.classes and self.samples):
            raise ValueError("give classes and samples, or size")
        if (self.size or self.classes or 0) % self.accumulate:
            raise ValueError(
                f"accumulate {self.accumulate} must divide the "
                + (f"{self.size} images of a batch" if self.size else f"{self.classes} classes of a batch")
            )
        return self


class OptimizerPart(Part):
    """The authors use Adam with eps = 1, which makes it nearly SGD with momentum."""

    name: Literal["adam", "adamw", "radam", "rmsprop", "sgd"] = "adam"
    eps: float = Field(1e-8, gt=0, description="of all but sgd")
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd and rmsprop")
    nesterov: bool = Field(False, description="of sgd")
    weight_decay: float = Field(0.0, ge=0)
    clip_value: float | None = Field(10.0, gt=0, description="clip of gradients by value, model only")
    average: float | None = Field(None, gt=0, lt=1, description="decay of a moving average of the weights")
    wise_ft: float | None = Field(
        None, gt=0, lt=1, description="evaluate start + wise_ft x (trained - start), weight by weight"
    )
    l2_sp: float = Field(0.0, ge=0, description="weight decay towards the start of the run, not to zero")


class Phase(Part):
    """A stretch of training; `loss_settings` takes effect at its start."""

    epochs: int = Field(ge=0, description="0 trains nothing: the model is evaluated as it starts")
    learning_rate: float = Field(gt=0, description="of the backbone")
    head_learning_rate: float | None = Field(None, gt=0, description="else that of the backbone")
    proxy_learning_rate: float | None = Field(None, gt=0, description="of all that the loss owns")
    proxy_travel: float | None = Field(
        None,
        gt=0,
        description="in place of proxy_learning_rate: how far proxies may move per epoch, in units of "
        "how far embeddings are from their centre",
    )
    network_learning_rate: float | None = Field(
        None, gt=0, description="of the network that hist and intra_batch train, else that of proxies"
    )
    freeze_backbone: bool = Field(False, description="train head and loss alone: a warm-up")
    warm_up_steps: int = Field(0, ge=0, description="batches over which rates rise from zero, linearly")
    schedule: Literal["constant", "step", "cosine", "plateau"] = "constant"
    step_epochs: int = Field(10, ge=1, description="schedule step: epochs between two drops")
    gamma: float = Field(0.1, gt=0, lt=1, description="schedules step and plateau: factor of a drop")
    plateau: int = Field(4, ge=1, description="schedule plateau: validations without gain before a drop")
    loss_settings: dict[str, float | Literal["auto"]] = Field(
        {}, description="settings of the loss from here on; auto measures those that can be measured"
    )

    @model_validator(mode="after")
    def _one_rate_of_proxies(self) -> "Phase":
        if (self.proxy_learning_rate is None) == (self.proxy_travel is None):
            raise ValueError("give either proxy_learning_rate or proxy_travel; the other one is null")
        return self


class EvaluationPart(Part):
    """Test classes are looked at once, at the end; only validation classes may guide training."""

    split: Literal["validation", "test"] = "validation"
    ks: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2, 4, 8)
    clustering: bool = Field(True, description="NMI and AMI at the end, too")
    every: int = Field(0, ge=0, description="epochs between two looks at the validation classes; 0: none")
    metric: str = Field("recall@1", description="that plateau and patience follow")
    patience: int | None = Field(None, ge=1, description="validations without gain before a phase ends early")
    avg_dtp_images: int = Field(2000, ge=0, description="training images that AvgDTP is measured on; 0: none")
    baseline: bool = Field(False, description="measure the untrained model's pooled features, too")
    fold: int | None = Field(
        None,
        ge=0,
        description="train on all folds of the training classes but this one, counted from 0; split "
        "validation judges the fold held out, split test the test classes",
    )
    folds: int = Field(4, ge=2, description="folds that the training classes are cut into")
    fold_seed: int | None = Field(
        None, ge=0, description="shuffles classes before they are cut into folds; else in sorted order"
    )

    def plan(self) -> SplitPlan:
        """Return what this part says of classes: which train and which are judged."""
        return SplitPlan(self.split, self.fold, self.folds, self.fold_seed)

    @model_validator(mode="after")
    def _fold_exists(self) -> "EvaluationPart":
        if self.fold is not None and self.fold >= self.folds:
            raise ValueError(f"fold {self.fold} of {self.folds}: folds count from 0 to {self.folds - 1}")
        return self

    @model_validator(mode="after")
    def _metric_exists(self) -> "EvaluationPart":
        known = [*(f"recall@{k}" for k in self.ks), "precision@1", "r_precision", "map@r"]
        if self.metric not in known:
            raise ValueError(f"metric {self.metric!r} is not measured; choose from {', '.join(known)}")
        return self


class Recipe(Part):
    paper: dict[str, Any] = Field({}, description="what the literature says: evidence, not settings")
    data: DataPart = DataPart()
    model: ModelPart = ModelPart()
    loss: LossPart
    batches: BatchPart = BatchPart()
    optimizer: OptimizerPart = OptimizerPart()
    phases: tuple[Phase, ...] = Field(min_length=1)
    evaluation: EvaluationPart = EvaluationPart()
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    checkpoint_minutes: float = Field(5.0, gt=0, description="between checkpoints inside an epoch")
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    seed: int = Field(0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _travel_is_bounded(self) -> "Recipe":
        travels = any(phase.proxy_travel for phase in self.phases)
        if travels and (self.optimizer.name not in ("adam", "adamw") or self.optimizer.eps > 1e-4):
            raise ValueError(
                "proxy_travel needs adam or adamw with eps of 1e-4 at most, whose steps have a known length, "
                f"not {self.optimizer.name} with eps {self.optimizer.eps}; give proxy_learning_rate"
            )
        return self

    @model_validator(mode="after")
    def _never_on_test(self) -> "Recipe":
        guided = self.evaluation.patience or any(phase.schedule == "plateau" for phase in self.phases)
        if guided and self.evaluation.split == "test":
            raise ValueError(
                "patience and schedule plateau follow a metric, and test classes must not guide training; "
                "run with evaluation.split validation, then set epochs and schedule step by what it found"
            )
        epochs = sum(phase.epochs for phase in self.phases)
        if guided and not 1 <= self.evaluation.every <= epochs:
            raise ValueError(
                f"patience and schedule plateau need evaluation.every between 1 and {epochs} epochs"
            )
        return self


PARTS: dict[str, type[Part]] = {
    "": Recipe,
    "data": DataPart,
    "model": ModelPart,
    "loss": LossPart,
    "batches": BatchPart,
    "optimizer": OptimizerPart,
    "phases.0": Phase,
    "evaluation": EvaluationPart,
}


def parse_recipe(settings: Any, source: str = "recipe") -> Recipe:
    """Return the validated recipe; a ValueError lists all that is wrong, with the nearest known keys.

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
        lines = [f"{source}: {_explain(problem)}" for problem in error.errors()]
        raise ValueError("\n".join(lines)) from None


class FlatLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for gigabytes, and recipes need none."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*NAME) are not taken; write it out")
        return super().compose_node(parent, index)


def read_settings(path: Path) -> dict[str, Any]:
    """Return what a YAML file says, not yet validated."""
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), FlatLoader)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not a recipe: it should hold keys such as loss and phases")
    return settings


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a YAML file."""
    return parse_recipe(read_settings(path), path.name)


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with softwarp."""
    return sorted(path.stem for path in _folder().glob("*.yaml") if not path.stem.startswith("table_"))


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: a path, or the name of one that comes with softwarp.

    >>> find_recipe("glyphs_proxy_nca_pp").name == find_recipe("recipes/glyphs_proxy_nca_pp.yaml").name
    True
    """
    if Path(name).is_file():
        return Path(name)
    packaged = _folder() / f"{Path(name).stem}.yaml"
    if packaged.stem not in recipe_names():
        near = get_close_matches(Path(name).stem, recipe_names(), n=1) or [", ".join(recipe_names())]
        raise ValueError(f"there is no recipe {name!r}; did you mean {near[0]}?")
    return packaged


def _folder() -> Path:
    return Path(str(files("softwarp") / "recipes"))


def _explain(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":
        key = "loss.name" if place == "loss" else f"{place}.KEY"
        return f"{place} has keys of its own; did you mean {key}={problem['input']}?"
    if problem["type"] != "extra_forbidden":
        return f"{place}: {message}" if place else message
    meant = _meant(*place.rpartition(".")[::2])
    return f"{place}: no such key" + (f"; did you mean {' or '.join(meant)}?" if meant else "")


def _meant(part: str, key: str) -> list[str]:
    """Return the keys, in full, that may have been meant by one that the part does not have."""
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
