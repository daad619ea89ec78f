"""What a loss declares about itself, for the command line, the docs, the trainer and the sharder."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from softwarp.losses.checks import check_positive
from softwarp.names import did_you_mean

WRAPPED = "those of the wrapped loss"
KINDS = ("proxies", "classifier", "pairs", "ranking", "graph")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a loss was trained by its authors, or by us if nothing was published or found: the defaults."""

    by: Literal["official code", "paper", "ours"] = "ours"  # whose numbers they are
    batch: tuple[int, int] | int = (32, 4)  # classes x samples of each, or a number of random images
    optimizer: str = "adam"
    rate_ratio: float | None = None  # rate of the loss's own parameters over the model's; None without any
    details: str  # which data set, eps and rates, and what differs on others

    def __str__(self) -> str:
        """Return it as one phrase."""
        batch = f"{self.batch} random images"
        if isinstance(self.batch, tuple):
            batch = "{} classes x {} samples".format(*self.batch)
        ratio = f", its own parameters at {self.rate_ratio:,.0f} times the rate" if self.rate_ratio else ""
        return f"{batch}, {self.optimizer}{ratio} ({self.by}: {self.details})"


@dataclass(frozen=True, kw_only=True)
class Card:
    """A description of a loss, and how it is trained when a recipe gives only its name.

    `search_space` maps a setting to ("log" | "float" | "int" | "auto", low, high); learning rates are also
    searched.
    """

    title: str
    citation: str
    year: int = 0  # by default the last one in the citation
    equation: str  # one line of plain text
    kind: Literal["proxies", "classifier", "pairs", "ranking", "graph"]
    networks: str = ""  # trained beside proxies or a classifier, unused at test time
    min_classes: int = 0  # fewest classes in a batch; by default 2 for pairs and rankings, else 1
    min_samples: int = 0  # fewest samples of each class in a batch; by default the same
    training: Training  # how it was trained when published
    # Ours: that ratio in recipes, for Adam with its usual eps; by default that of `training`, or 1.
    proxy_rate_ratio: float = 0.0
    proxy_travel: float = 2.0  # ours: in phases that give the rate as travel, if proxies start at random
    search_space: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    notes: str = ""  # where it differs from the official code, which constants are ours

    def __post_init__(self) -> None:
        """Fill in what follows from the rest."""
        least = 2 if self.kind in ("pairs", "ranking") else 1
        year = int(["0", *re.findall(r"\b(?:19|20)\d\d\b", self.citation)][-1])
        ratio = self.training.rate_ratio or 1.0
        defaults = {"year": year, "min_classes": least, "min_samples": least, "proxy_rate_ratio": ratio}
        for name, value in defaults.items():
            object.__setattr__(self, name, getattr(self, name) or value)

    def check_counts(self, labels: Tensor) -> None:
        """Raise a ValueError when a batch with these labels holds too few classes or samples."""
        counts = labels.unique(return_counts=True)[1]
        if len(counts) < self.min_classes or int(counts.min()) < self.min_samples:
            raise ValueError(
                f"{self.title} needs at least {self.min_classes} classes with {self.min_samples} samples "
                f"each in a batch, got {len(counts)} classes with {int(counts.min())} or more; raise "
                "batches.classes or batches.samples, or lower batches.accumulate"
            )

    def needs(self) -> str:
        """Return what a batch must hold, in a few words."""
        if self.min_classes == self.min_samples == 1:
            return "any batch"
        if self.min_classes == 1:
            return f"{self.min_samples} samples of each class"
        return f"{self.min_classes} classes x {self.min_samples} samples"


@runtime_checkable
class Loss(Protocol):
    """What a loss has in addition to `loss(embeddings, labels)`.

    One whose settings may change between phases also has `start_phase(*, setting=...)`, and keeps them in
    its state dict (`get_extra_state = phase_state`, `set_extra_state = set_phase_state`). One that measures
    settings itself says what they are: `readings() -> dict[str, float]`.
    """

    @property
    def distance(self) -> str:
        """ "euclidean" or "cosine": how its embeddings are compared."""

    @property
    def card(self) -> Card:
        """The loss in words."""

    @property
    def class_vectors(self) -> str | None:
        """Which parameter holds the vectors of the classes, class first; None if there is none.

        It is called `proxies` where it is one point of the embedding space per class, [C, D].
        """


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Some of the classes, and the samples of a batch that belong to them."""

    labels: Tensor  # [N], of the whole batch
    rows: Tensor  # [M], the samples whose own class is here
    places: Tensor  # [M], where the class of each is among the class vectors here
    competing: int  # classes in the softmax, over all shards
    landmarks: Callable[[], Tensor]  # class vectors from all shards, evenly spaced and not many
    total: Callable[[Tensor], Tensor]  # the sum over shards, without a gradient
    same: Callable[[Tensor], Tensor]  # returns the first shard's value on all of them

    def spread(self, values: Tensor) -> Tensor:
        """Return [N] with `values` [M] at the samples whose class is here, and 0 at the others."""
        return values.new_zeros(len(self.labels)).index_put((self.rows,), values)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A softmax over classes in its parts, for the classes of one shard.

    The logit of another class is `query . key + bias`, or with a scale `-scale |query - key|`. The loss of
    sample i is log(1 + sum_j exp(logit_ij - own_i)), j over the other classes, plus the sum of `extra_i` over
    shards.
    """

    queries: Tensor  # [N, D], the batch
    keys: Tensor  # [C, D], the classes of the shard
    own: Tensor  # [M], the logit of a sample's own class, for the samples whose class is here
    bias: Tensor | None = None  # [C]
    scale: float | None = None
    extra: Tensor | None = None  # [N]
    learn: Callable[[], None] = lambda: None  # records the batch, once it has proved good


@runtime_checkable
class ClassSoftmax(Protocol):
    """A loss that is a softmax over classes, and so can divide them over processes.

    All its parameters hold one row per class; those that it has at the time are the shard's.
    """

    num_classes: int

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts; embeddings [N, D] are at least float32."""


@runtime_checkable
class Divided(Protocol):
    """A loss whose class vectors are divided over processes."""

    here: range  # the classes of this process

    def vectors_at(self, classes: Tensor) -> Tensor:
        """Return the vectors of these classes, from whichever process has them."""

    def mean_over_classes(self, rows: Tensor) -> Tensor:
        """Return the mean of `rows`, one per class of this process, over the classes of all."""


def own_logits(queries: Tensor, keys: Tensor, shard: Shard) -> Tensor:
    """Return the products of the samples whose class is here with the vector of that class, [M]."""
    return (queries[shard.rows] * keys[shard.places]).sum(1)


def classes_here(loss: nn.Module) -> range:
    """Return the classes whose vectors this process holds: all of them, unless they are divided."""
    vectors = class_vectors_of(loss)
    return loss.here if isinstance(loss, Divided) else range(0 if vectors is None else len(vectors))


def vectors_at(loss: nn.Module, classes: Tensor) -> Tensor:
    """Return the class vectors of these classes, without a gradient."""
    if isinstance(loss, Divided):
        return loss.vectors_at(classes)
    vectors = class_vectors_of(loss)
    assert vectors is not None
    return vectors.detach()[classes]


def mean_over_classes(loss: nn.Module, rows: Tensor) -> Tensor:
    """Return the mean of `rows`, one per class that this process holds, over all classes."""
    return loss.mean_over_classes(rows) if isinstance(loss, Divided) else rows.mean(0)


def class_vectors_of(loss: nn.Module) -> nn.Parameter | None:
    """Return the parameter [C, ...] that holds the vectors of the classes, None for a loss without.

    >>> from softwarp.losses import GroupLoss
    >>> class_vectors_of(GroupLoss(num_classes=10, embedding_size=4)).shape
    torch.Size([10, 4])
    """
    name = _contract(loss).class_vectors
    return None if name is None else loss.get_parameter(name)


def proxies_of(loss: nn.Module) -> nn.Parameter | None:
    """Return the proxies [C, D] that embeddings can be measured from, None for a loss without.

    Weights of a classifier, or several vectors per class, do not count.
    """
    name = _contract(loss).class_vectors or ""
    return class_vectors_of(loss) if name.rpartition(".")[2] == "proxies" else None


def check_declared(loss: Any, name: str) -> None:
    """Raise a ValueError that says what a loss, or its class, does not declare."""
    missing = [each for each in ("distance", "card", "class_vectors") if not hasattr(loss, each)]
    if missing or not isinstance(loss.card, Card):
        lacks = ", ".join(missing) or "a Card as its card"
        raise ValueError(f"{name} does not declare {lacks}; examples/own_loss.py shows how")


def _contract(loss: Any) -> Loss:
    check_declared(loss, type(loss).__name__)
    found: Loss = loss
    return found


def start_phase(loss: nn.Module, settings: Mapping[str, Any]) -> None:
    """Give a loss the settings of a new phase; for an unknown one, a ValueError suggests the nearest.

    >>> from softwarp.losses import WarpedSoftmaxLoss
    >>> start_phase(WarpedSoftmaxLoss(num_classes=10, embedding_size=4), {"aplha": 2.0})
    Traceback (most recent call last):
    ...
    ValueError: Warped softmax has no 'aplha' for a phase to set; did you mean alpha?
    """
    known, title = phase_settings_of(type(loss)), _contract(loss).card.title
    for name in settings:
        if name not in known and WRAPPED not in known:
            answer = did_you_mean(name, known, f"it takes {', '.join(known) or 'none'}")
            raise ValueError(f"{title} has no {name!r} for a phase to set; {answer}")
    try:
        if settings:
            loss.start_phase(**settings)  # type: ignore[operator]
    except TypeError as error:  # text where a number belongs
        raise ValueError(f"{title} cannot take {dict(settings)}: {error}") from error


def proxies_placed(loss: nn.Module) -> None:
    """Tell a loss that its class vectors were put where their classes are; few have a use for it."""
    if hasattr(loss, "proxies_placed"):
        loss.proxies_placed()  # type: ignore[operator]


def readings_of(loss: nn.Module) -> dict[str, float]:
    """Return what a loss says of its settings as they are now, nothing for one that says nothing.

    >>> from softwarp.losses import EuclideanSoftmaxLoss
    >>> readings_of(EuclideanSoftmaxLoss(num_classes=10, embedding_size=4, scale=2.0))
    {'scale': 2.0}
    """
    found: dict[str, float] = loss.readings() if hasattr(loss, "readings") else {}  # type: ignore[operator]
    return found


def phase_settings_of(loss_class: type) -> list[str]:
    """Return the settings that a phase can change.

    >>> from softwarp.losses import EuclideanSoftmaxLoss, TripletLoss
    >>> phase_settings_of(EuclideanSoftmaxLoss), phase_settings_of(TripletLoss)
    (['scale'], [])
    """
    method = getattr(loss_class, "start_phase", None)
    parameters = list(inspect.signature(method).parameters.values())[1:] if method else []
    return [WRAPPED if each.kind is each.VAR_KEYWORD else each.name for each in parameters]


def phase_state(loss: Any) -> dict[str, Any]:
    """Return the values that a phase can set: the extra state of a loss that keeps them as plain numbers."""
    return {name: getattr(loss, name) for name in phase_settings_of(type(loss))}


def set_phase_state(loss: Any, state: dict[str, Any]) -> None:
    """Set them again."""
    loss.start_phase(**state)


def set_scale(loss: Any, *, scale: float) -> None:
    """Change the scale: the `start_phase` of a loss whose phases set nothing else."""
    check_positive(scale=scale)
    loss.scale = scale


def defaults_of(loss_class: type) -> dict[str, Any]:
    """Return the settings of a loss that have a default, as a recipe writes them.

    >>> from softwarp.losses import RecallAtKLoss
    >>> defaults_of(RecallAtKLoss)["cutoffs"]
    [1, 2, 4, 8, 16]
    """
    parameters = list(inspect.signature(loss_class).parameters.values())[2:]
    found = {each.name: each.default for each in parameters if each.default not in (each.empty, None)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def settings_of(loss_class: type) -> dict[str, str]:
    """Return the default of each setting of a loss as text, "required" where there is none.

    >>> from softwarp.losses import ProxyNCAppLoss
    >>> settings_of(ProxyNCAppLoss)
    {'scale': '9.0', 'proxy_init': 'proxy_nca_pp'}
    """
    parameters = list(inspect.signature(loss_class).parameters.values())[2:]
    return {parameter.name: _default(parameter) for parameter in parameters}


def shown_settings(loss: Any) -> str:
    """Return the sizes of a loss and the settings that it keeps under their own names: its `extra_repr`."""
    vectors = class_vectors_of(loss)
    classes, *_, size = loss.sizes if vectors is None else vectors.shape
    kept = vars(loss) | getattr(loss, "settings", {}) | {"num_classes": classes, "embedding_size": size}
    names = ["num_classes", "embedding_size", *settings_of(type(loss))]
    return ", ".join(f"{name}={kept[name]!r}" for name in names if name in kept)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return WRAPPED
    return "required" if parameter.default is parameter.empty else str(parameter.default)
