"""The training of `toy.py`: images, a small LeNet with embeddings of two dimensions, and what it measures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softwarp.data.glyphs import load_glyphs
from softwarp.data.idx import read_idx
from softwarp.events import OnEvent, Work
from softwarp.files import atomic_write, write_json
from softwarp.losses import build_loss
from softwarp.losses.contract import start_phase
from softwarp.losses.distances import euclidean_distances
from softwarp.metrics import average_distance_to_proxy, geometry_metrics
from softwarp.training.stops import asked_to_stop
from softwarp.training.train import StoppedError


class ToyKind(NamedTuple):
    """What is trained: its title, its loss, and alpha: a factor of Eq. 4's AvgDTP, or "auto"."""

    title: str
    loss: str
    alpha: float | str = 0.0


PLAIN = "plain"
KINDS = {
    PLAIN: ToyKind("Eq. 4", "euclidean_softmax"),
    "twice": ToyKind("warp, alpha 2 x AvgDTP", "warped_softmax", 2.0),
    "automatic": ToyKind("warp, automatic alpha", "warped_softmax", "auto"),
}
SLOPES = {"k1": 0.7, "k2": 1.3}
CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
DIGITS = "0123456789"  # glyphs that stand in for FashionMNIST
SHOWN = 60  # images of each class that are drawn
BATCH = 128
RATE, PROXY_RATE = 1e-3, 3e-2


@dataclass(frozen=True)
class Pictures:
    """Images [N, 1, 32, 32] in 0..1 with their labels, for training and held out, and the classes' names."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    names: tuple[str, ...]
    source: str


def load_pictures(data: Path | None, *, per_class: int) -> Pictures:
    """Return images of each class of FashionMNIST or, without a folder, of ten digits in twelve styles."""
    if data is None:
        glyphs = load_glyphs()
        classes = torch.tensor([glyphs.characters.index(digit) for digit in DIGITS])
        labels, rows = (glyphs.labels[:, None] == classes).nonzero().flip(1).T
        place = torch.arange(len(rows)) % 12
        parts = [(glyphs.images[rows[place % 4 != 3]], labels[place % 4 != 3])]
        parts += [(glyphs.images[rows[place % 4 == 3]], labels[place % 4 == 3])]
        names, source = tuple(DIGITS), "ten digits of the glyphs"
    else:
        parts = [_fashion(data, "train", per_class), _fashion(data, "t10k", per_class // 3)]
        names, source = CLOTHES, "FashionMNIST"
    train, held_out = ((_prepared(images), labels) for images, labels in parts)
    return Pictures(train, held_out, names, source)


def _fashion(data: Path, part: str, per_class: int) -> tuple[Tensor, Tensor]:
    try:
        images, labels = (
            torch.from_numpy(read_idx(data / f"{part}-{kind}-ubyte").copy())
            for kind in ("images-idx3", "labels-idx1")
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"--data {data}: there is no {Path(error.filename).name}; "
            "give the folder of FashionMNIST's four idx files (torchvision keeps them in FashionMNIST/raw)"
        ) from None
    rows = torch.cat([(labels == label).nonzero()[:per_class, 0] for label in range(len(CLOTHES))])
    return images[rows, None], labels[rows].long()


def _prepared(images: Tensor) -> Tensor:
    margin = (32 - images.shape[-1]) // 2
    return pad(images.float() / 255, (margin,) * 4)


def network() -> nn.Sequential:
    """Return LeNet with wider layers: two convolutions, three linear layers, the last of two outputs."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2)),
    )


def train_toy(
    folder: Path,
    on_event: OnEvent | None,
    *,
    kind: str,
    alpha: float | str,
    seed: int,
    pictures: Pictures,
    plan: dict[str, int],
) -> None:
    """Train one kind with one seed; resume from the last round, if there is one."""
    title, name, _ = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, criterion = network(), build_loss(name, len(pictures.names), 2, proxy_init="normal")
    groups = [
        {"params": model.parameters(), "lr": RATE},
        {"params": criterion.parameters(), "lr": PROXY_RATE},
    ]
    optimizer = torch.optim.Adam(groups)
    parts: dict[str, Any] = {"model": model, "criterion": criterion, "optimizer": optimizer}
    checkpoint = folder / "checkpoint.pt"
    frames: list[tuple[Tensor, Tensor]] = [_frame(model, criterion, pictures)]
    if checkpoint.is_file():
        saved = torch.load(checkpoint, weights_only=True)
        frames = saved["frames"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    bar = Work(on_event, f"{title}, seed {seed}", total=plan["rounds"])
    with asked_to_stop(torch.device("cpu")) as stop:
        for number in range(len(frames) - 1, plan["rounds"]):
            if kind != PLAIN:
                begin_round(criterion, alpha, number, plan["rounds"])
            _train_round(model, criterion, optimizer, pictures, plan, seed=seed, number=number)
            frames.append(_frame(model, criterion, pictures))
            states = {name: part.state_dict() for name, part in parts.items()}
            with atomic_write(checkpoint) as file:
                torch.save(states | {"frames": frames}, file)
            bar.reach(number + 1)
            if stop():
                raise StoppedError
    found = _measure(model, criterion, pictures) | {"drawn": _written(frames[-1])}
    if kind != PLAIN:
        found["alpha"] = float(criterion.get_buffer("alpha"))
    write_json(folder / "result.json", found)


def begin_round(criterion: nn.Module, alpha: float | str, number: int, rounds: int) -> None:
    """Switch the warp on after a quarter of the rounds; an automatic alpha is measured once, then."""
    first = -(-rounds // 4)
    settings: dict[str, Any] = {"k1": 1.0, "k2": 1.0} if number < first else dict(SLOPES)
    measured = isinstance(alpha, str) and number > first  # since then, and kept in the checkpoint
    if number >= first and not measured:
        settings["alpha"] = alpha
    start_phase(criterion, settings)


def _train_round(
    model: nn.Module,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: Pictures,
    plan: dict[str, int],
    *,
    seed: int,
    number: int,
) -> None:
    """Take the steps of a round; its batches depend on seed and number alone. The rates fall to zero."""
    images, labels = pictures.train
    generator = torch.Generator().manual_seed(1_000_003 * seed + number)
    for step in range(plan["steps"]):
        done = (number * plan["steps"] + step) / (plan["rounds"] * plan["steps"])
        for group, rate in zip(optimizer.param_groups, (RATE, PROXY_RATE), strict=True):
            group["lr"] = rate * (1 - done)
        rows = torch.randperm(len(labels), generator=generator)[:BATCH]
        loss = criterion(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _frame(model: nn.Module, criterion: nn.Module, pictures: Pictures) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the images that are drawn [N, 2], and the proxies [C, 2]."""
    images, labels = pictures.train
    return model(images[shown_rows(labels)]), _proxies(criterion)


def _proxies(criterion: nn.Module) -> Tensor:
    return criterion.get_parameter("proxies").detach().clone()


def shown_rows(labels: Tensor) -> Tensor:
    """Return the first images of each class.

    >>> shown_rows(torch.tensor([1, 0, 1])).tolist()
    [1, 0, 2]
    """
    return torch.cat([(labels == label).nonzero()[:SHOWN, 0] for label in labels.unique()])


@torch.no_grad()
def _measure(model: nn.Module, criterion: nn.Module, pictures: Pictures) -> dict[str, Any]:
    proxies = _proxies(criterion)
    return {
        part: measures(torch.cat([model(batch) for batch in images.split(1000)]), labels, proxies)
        for part, (images, labels) in (("train", pictures.train), ("held_out", pictures.held_out))
    }


def measures(embeddings: Tensor, labels: Tensor, proxies: Tensor) -> dict[str, float]:
    """Return compactness, separability and their ratio, AvgDTP, and how often the nearest proxy is right."""
    geometry = geometry_metrics(embeddings, labels)
    nearest = euclidean_distances(embeddings, proxies).argmin(1)
    return {name: geometry[name] for name in ("separability_ratio", "separability", "compactness")} | {
        "avg_dtp": average_distance_to_proxy(embeddings, labels, proxies),
        "accuracy": float((nearest == labels).double().mean()),
    }


def _written(frame: tuple[Tensor, Tensor]) -> dict[str, str]:
    """Return points and proxies as text, which takes one line of JSON each, not thousands."""
    points, proxies = (" ".join(f"{x:.3f},{y:.3f}" for x, y in each.tolist()) for each in frame)
    return {"points": points, "proxies": proxies}
