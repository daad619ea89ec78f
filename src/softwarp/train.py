"""train(recipe, folder) -> Run: the visible loop."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.progress import Progress
from torch import Tensor, nn

from softwarp.data.glyphs import load_glyphs
from softwarp.data.sampling import BalancedBatches
from softwarp.data.splits import items_of, split_classes
from softwarp.evaluate import embed, measure
from softwarp.losses import WarpedSoftmaxLoss, build_loss
from softwarp.metrics import average_distance_to_proxy
from softwarp.models.embedder import Embedder
from softwarp.recipe import Phase, Recipe
from softwarp.runs import Run

OBSERVED = 2000  # training images on which AvgDTP is followed


def train(recipe: Recipe, folder: Path, *, progress: Progress | None = None) -> Run:
    """Return the finished run: trained on the training classes, evaluated on classes never seen.

    The seed decides initial weights, batches and clustering; two losses with the same seed see the same
    batches and start from the same network.
    """
    started = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    glyphs = load_glyphs()
    split = split_classes(len(glyphs.characters))
    train_classes = split.train[: recipe.data.max_classes]
    items, labels = items_of(glyphs.labels, train_classes)
    images = glyphs.images[items]
    observed = torch.linspace(0, len(items) - 1, min(OBSERVED, len(items))).long()

    torch.manual_seed(recipe.seed)
    model = Embedder(recipe.model.backbone, recipe.model.embedding_size).to(device)
    loss = build_loss(
        recipe.loss.name, len(train_classes), recipe.model.embedding_size, **recipe.loss.settings
    ).to(device)
    batches = BalancedBatches(
        labels,
        classes_per_batch=recipe.batches.classes,
        samples_per_class=recipe.batches.samples,
        seed=recipe.seed,
    )
    optimizer = torch.optim.Adam(
        [{"params": model.parameters()}, {"params": loss.parameters()}],
        eps=recipe.optimizer.eps,
        weight_decay=recipe.optimizer.weight_decay,
    )

    run = Run.create(folder, recipe)
    epochs = sum(phase.epochs for phase in recipe.phases)
    with _bar(progress, recipe.loss.name, epochs * len(batches)) as advance:
        for number, phase in enumerate(recipe.phases):
            start_phase(phase, loss, optimizer)
            for _ in range(phase.epochs):
                total = 0.0
                for batch in batches:
                    value = loss(model(images[batch].to(device)), labels[batch].to(device))
                    optimizer.zero_grad()
                    value.backward()
                    if recipe.optimizer.clip_value is not None:
                        nn.utils.clip_grad_value_(model.parameters(), recipe.optimizer.clip_value)
                    optimizer.step()
                    total += value.item()
                    advance()
                batches.epoch += 1
                run.log(
                    {
                        "epoch": batches.epoch,
                        "phase": number,
                        "loss": total / len(batches),
                        "avg_dtp": distance_to_proxy(model, loss, images[observed], labels[observed]),
                        "seconds": time.perf_counter() - started,
                    }
                )
                run.save_checkpoint(
                    {
                        "epoch": batches.epoch,
                        "model": model.state_dict(),
                        "loss": loss.state_dict(),
                        "optimizer": optimizer.state_dict(),
                    }
                )

    classes = getattr(split, recipe.evaluation.split)[: recipe.data.max_classes]
    items, labels = items_of(glyphs.labels, classes)
    embeddings = embed(model, glyphs.images[items])
    measured = measure(
        embeddings,
        labels,
        families=("retrieval", "clustering"),
        ks=recipe.evaluation.ks,
        distance=str(loss.distance),
        seed=recipe.seed,
    )
    run.save_embeddings(embeddings, labels)
    run.write_result(
        {
            "name": recipe.loss.name,
            "distance": loss.distance,
            "split": recipe.evaluation.split,
            "classes": {"train": len(train_classes), "evaluated": len(classes)},
            "metrics": measured["metrics"] | {"avg_dtp": run.history()[-1]["avg_dtp"]},
            "seconds": time.perf_counter() - started,
            "data_sha256": glyphs.sha256,
        }
    )
    return run


def start_phase(phase: Phase, loss: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Set the phase's learning rates (model, then proxies) and the loss's warp; optimizer state stays."""
    for group, rate in zip(
        optimizer.param_groups, (phase.learning_rate, phase.proxy_learning_rate), strict=True
    ):
        group["lr"] = rate
    if phase.warp:
        if not isinstance(loss, WarpedSoftmaxLoss):
            raise ValueError(f"the phase sets {', '.join(phase.warp)}, but only warped_softmax has a warp")
        loss.set_warp(**phase.warp)


def distance_to_proxy(model: nn.Module, loss: nn.Module, images: Tensor, labels: Tensor) -> float | None:
    """Return AvgDTP in the space where the loss measures, None for a loss without one proxy a class."""
    proxies = getattr(loss, "proxies", None)
    if proxies is None:
        return None
    embeddings, proxies = embed(model, images), proxies.detach().cpu()
    if loss.distance == "cosine":
        embeddings, proxies = nn.functional.normalize(embeddings), nn.functional.normalize(proxies)
    return average_distance_to_proxy(embeddings, labels, proxies)


@contextmanager
def _bar(progress: Progress | None, name: str, steps: int) -> Iterator[Callable[[], None]]:
    """Yield what is called after each step."""
    if progress is None:
        yield lambda: None
        return
    task = progress.add_task(name, total=steps)
    yield lambda: progress.advance(task)
