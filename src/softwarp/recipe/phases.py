"""How a recipe trains and judges: its optimizer, its phases and its evaluation."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from softwarp.data.splits import SplitPlan
from softwarp.recipe.part import Part, Share
from softwarp.tables import names_of

TRAVELLING = ("adam", "adamw", "rmsprop")  # optimizers whose steps have a known length


class OptimizerPart(Part):
    """How weights are updated. The authors' Adam has eps = 1, which makes it nearly SGD with momentum."""

    name: Literal["adam", "adamw", "radam", "rmsprop", "sgd"] = Field("adam", description="the optimizer")
    eps: float = Field(1e-8, gt=0, description="added to the denominator of a step; every optimizer but sgd")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd and rmsprop")
    nesterov: bool = Field(False, description="Nesterov's momentum for sgd")
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="weight decay of the model, and of the proxies unless proxy_weight_decay is given",
    )
    proxy_weight_decay: float | None = Field(
        None, ge=0, description="weight decay of everything the loss owns; null: the same as weight_decay"
    )
    clip_value: float | None = Field(
        10.0, gt=0, description="limits each entry of the model's gradient; null: no limit"
    )
    clip_norm: float | None = Field(
        None, gt=0, description="limits the norm of the model's whole gradient, in place of clip_value"
    )
    layer_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="factor of the learning rate from each block of the backbone to the one before it; null: "
        "one rate for all",
    )
    average: float | None = Field(
        None, gt=0, lt=1, description="decay of a moving average of the weights, which is what is evaluated"
    )
    wise_ft: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="evaluate and save start + wise_ft x (trained - start), weight by weight",
    )
    l2_sp: float = Field(
        0.0, ge=0, description="weight decay towards the weights at the start of the run instead of zero"
    )

    @model_validator(mode="after")
    def _clips_once(self) -> "OptimizerPart":
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError("clip_norm and clip_value exclude each other; set clip_value=null")
        return self


class Phase(Part):
    """A stretch of training; `loss_settings` takes effect at its start."""

    epochs: int = Field(
        ge=0, description="epochs of the phase; 0 trains nothing, and the initial model is evaluated"
    )
    learning_rate: float = Field(gt=0, description="learning rate of the backbone")
    head_learning_rate: float | None = Field(
        None, gt=0, description="learning rate of the head; null: the backbone's"
    )
    proxy_learning_rate: float | None = Field(
        None, gt=0, description="learning rate of everything the loss owns; give this or proxy_travel"
    )
    proxy_travel: float | None = Field(
        None,
        gt=0,
        description="how far a proxy may move per epoch (or per 32 steps, if an epoch has fewer), in units "
        "of the embeddings' reach; for adam, adamw and rmsprop",
    )
    network_learning_rate: float | None = Field(
        None,
        gt=0,
        description="learning rate of the networks that hist and intra_batch train; null: the proxies'",
    )
    freeze_backbone: bool = Field(False, description="train the head and the loss alone, as a warm-up")
    warm_up_steps: int = Field(0, ge=0, description="batches over which rates rise linearly from zero")
    schedule: Literal["constant", "step", "cosine", "plateau", "polynomial"] = Field(
        "constant", description="how the rates fall during the phase"
    )
    step_epochs: int = Field(10, ge=1, description="schedule step: epochs between drops")
    gamma: float = Field(0.1, gt=0, lt=1, description="schedules step and plateau: factor of each drop")
    power: float = Field(2.0, gt=0, description="schedule polynomial: rates fall as (1 - share done)^power")
    span: tuple[float, float] | None = Field(
        None,
        description="schedule polynomial over several phases: epochs of the decay before this phase, and in "
        "all; null: this phase alone",
    )
    plateau: int = Field(
        4, ge=1, description="schedule plateau: validations without improvement before a drop"
    )
    loss_settings: dict[str, float | Annotated[str, Field(pattern="^auto(:.+)?$")]] = Field(
        {}, description="settings of the loss from this phase on; auto measures those that can be measured"
    )

    @model_validator(mode="after")
    def _span_and_proxy_rate(self) -> "Phase":
        if self.span is not None and not 0 <= self.span[0] <= self.span[1] - self.epochs:
            raise ValueError(
                f"span {list(self.span)} leaves no room for {self.epochs} epochs; give the epochs before "
                "this phase and those of the whole decay"
            )
        if (self.proxy_learning_rate is None) == (self.proxy_travel is None):
            raise ValueError("give either proxy_learning_rate or proxy_travel; set the other one to null")
        return self


class EvaluationPart(Part):
    """What is held out and measured. Test classes are judged once, at the end, and never guide training."""

    split: Literal["validation", "test"] = Field(
        "validation", description="what is judged: held-out training classes, or the test classes"
    )
    ks: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 4, 8), description="the K of Recall@K")
    clustering: bool = Field(True, description="also compute NMI and AMI at the end")
    every: int = Field(0, ge=0, description="epochs between evaluations on the validation classes; 0: none")
    metric: str = Field("recall@1", description="the metric that plateau and patience follow")
    patience: int | None = Field(
        None, ge=1, description="validations without improvement before a phase ends early"
    )
    avg_dtp_images: int = Field(
        2000, ge=0, description="training images by which AvgDTP is measured; 0: none"
    )
    baseline: bool = Field(
        False, description="also measure the untrained model's pooled features, for comparison"
    )
    whole_gallery: bool = Field(
        False,
        description="at the end, also look what is judged up among the training images, if these are of "
        "other classes; of more than 20,000 of them, among up to 32 of each class",
    )
    fold: int | None = Field(
        None,
        ge=0,
        description="train on every fold of the training classes except this one, counted from 0; split "
        "validation judges that fold, split test the test classes",
    )
    folds: int = Field(4, ge=2, description="number of folds of the training classes")
    fold_seed: int | None = Field(
        None,
        ge=0,
        description="seed that shuffles classes before they are cut into folds; null: sorted order",
    )
    fold_of: Literal["validation", "test"] = Field(
        "test", description="folds are cut from the classes that this split would train on without folds"
    )
    test_classes: Literal["given", "second_half", "none"] = Field(
        "given",
        description="given: those of the data set; second_half: the second half of all classes; none: all "
        "classes train, and nothing is judged",
    )
    interpolations: tuple[Share, ...] = Field(
        (), description="shares of the way from the start (see wise_ft) that each validation judges as well"
    )

    def measured(self) -> list[str]:
        """Return the retrieval metrics that every evaluation measures."""
        return [*(f"recall@{k}" for k in self.ks), *names_of("retrieval")]

    def check_judged(self) -> None:
        """Raise a ValueError if no classes are judged, for work that compares models."""
        if self.test_classes == "none":
            raise ValueError(
                "the recipe trains on all classes; set evaluation.test_classes=given to judge some"
            )

    def plan(self) -> SplitPlan:
        """Return which classes train and which are judged."""
        return SplitPlan(
            self.split,
            self.fold,
            self.folds,
            self.fold_seed,
            self.fold_of,
            self.test_classes,
            images=bool(self.interpolations),  # interpolations are chosen by held-out classes and images
        )

    @model_validator(mode="after")
    def _can_be_judged(self) -> "EvaluationPart":
        if self.fold is not None and self.fold >= self.folds:
            raise ValueError(
                f"fold {self.fold} of {self.folds} does not exist; folds count from 0 to {self.folds - 1}"
            )
        if self.test_classes == "none" and (self.every or self.fold is not None or self.baseline):
            raise ValueError(
                "test_classes none judges nothing: omit every, fold and baseline, or hold classes out"
            )
        known = self.measured()
        if self.metric not in known:
            raise ValueError(f"metric {self.metric!r} is not measured; choose from {', '.join(known)}")
        return self
