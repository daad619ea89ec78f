"""Where training starts: a head and proxies that follow from the training images, rates from their reach."""

import math

import torch
from torch import Tensor, nn

from softwarp import processes
from softwarp.evaluation import evenly_spaced
from softwarp.losses.contract import class_vectors_of, classes_here, mean_over_classes, proxies_placed
from softwarp.models.adapters import merged
from softwarp.models.principal import class_means, principal_head
from softwarp.recipe.phases import Phase
from softwarp.training.features import in_parts, items_to_calibrate, pooled_of, sampled_items
from softwarp.training.head import Head, starting_head
from softwarp.training.job import Job
from softwarp.training.judge import embed_for, untrained

PLACED = ("pca", "whitened")  # ways to start the head that follow from the images
REACH_IMAGES = 512  # images on which the reach of the embeddings is measured
FEWEST_STEPS = 32  # a shorter epoch counts as this long: one step must not throw a proxy across the space


def start_run(job: Job) -> None:
    """Give head and proxies the start that the recipe asks for, the same in every process."""
    placed, means = job.recipe.model.head_init in PLACED, job.recipe.loss.proxy_init == "means"
    if placed or means:
        inputs, labels = head_inputs(job)
        head = job.model.head
        if placed and isinstance(head, nn.Linear):
            size = head.out_features
            weight, bias = processes.from_main(lambda: _head(job, inputs, labels, size))
            with torch.no_grad():
                head.weight.copy_(weight)
                head.bias.copy_(bias)
        if means:
            start_proxies(job, inputs, labels)
    if job.average is not None:
        job.average.module.load_state_dict(job.model.state_dict())
    if job.start is not None:
        job.start.load_state_dict(merged(job.model).state_dict())


def _head(job: Job, inputs: Tensor, labels: Tensor, size: int) -> Head:
    """Weight and bias of the head at principal directions, or whitened within classes."""
    if job.recipe.model.head_init == "pca":
        return principal_head(inputs, size, centre=job.loss.distance == "euclidean")
    return starting_head(inputs, labels, size, job.recipe.start, seed=job.recipe.seed)


@torch.no_grad()
def head_inputs(job: Job) -> tuple[Tensor, Tensor]:
    """Return what the head sees of a sample of the training images, [N, channels], and their labels."""
    chosen = items_to_calibrate if job.recipe.model.head_init == "whitened" else sampled_items
    device = job.accelerator.device
    pooled, seen = pooled_of(
        untrained(job),
        job.source.plain,
        job.recipe,
        device=device,
        items=chosen(job.source.labels, seed=job.recipe.seed),
        workers=job.workers(),
    )
    return in_parts(job.model.norm, pooled, device), job.source.labels[seen]


@torch.no_grad()
def start_proxies(job: Job, inputs: Tensor, labels: Tensor) -> None:
    """Put the vectors of the classes on the means of the embeddings, of length 1 where cosine counts."""
    vectors, here = class_vectors_of(job.loss), classes_here(job.loss)
    shape = None if vectors is None else tuple(vectors.shape)
    if vectors is None or shape != (len(here), job.model.embedding_size):
        raise ValueError(
            "loss.proxy_init means needs one vector per class in the embedding space, "
            f"{job.recipe.loss.name} has {'none' if shape is None else list(shape)}; omit proxy_init"
        )
    parts = [job.model.from_head_input(part.to(vectors)).cpu() for part in inputs.split(4096)]
    vectors.copy_(class_means(torch.cat(parts), labels, here, unit=job.loss.distance == "cosine"))
    if job.recipe.model.pretrained:  # the means of an untrained network do not tell classes apart yet
        proxies_placed(job.loss)


def proxy_rate(job: Job, phase: Phase) -> float:
    """Return the learning rate of the proxies: as the phase says, or from how far they may travel.

    A step of Adam moves each coordinate by the rate at most, and so a proxy by rate x sqrt(D). RMSprop's
    momentum m adds such steps up, to rate / (1 - m). The unit of travel is the reach of the embeddings;
    where cosine counts, the length of the proxies. Epochs of a few steps count as longer ones.
    """
    if phase.proxy_travel is None:
        assert phase.proxy_learning_rate is not None
        return phase.proxy_learning_rate
    vectors = class_vectors_of(job.loss)
    if vectors is None:
        raise ValueError(f"{job.recipe.loss.name} has no proxies that travel; give proxy_learning_rate")
    size = vectors.shape[-1]
    proxies = vectors.detach().reshape(-1, size)
    if job.loss.distance == "cosine":
        unit = math.sqrt(mean_over_classes(job.loss, proxies.double().square().sum(1)))
    else:
        unit = reach(job, mean_over_classes(job.loss, proxies).cpu())
    steps, optimizer = max(len(job.batches), FEWEST_STEPS), job.recipe.optimizer
    slower = 1 - optimizer.momentum if optimizer.name == "rmsprop" else 1.0
    return slower * phase.proxy_travel * (unit or 1.0) / (math.sqrt(size) * steps)


def reach(job: Job, centre: Tensor) -> float:
    """Return the rms distance of training images, as the model embeds them now, from the proxies' mean.

    Not from their own mean: batch norm that has seen no image yet lets them all fall into one place.
    """
    items = evenly_spaced(len(job.source.labels), REACH_IMAGES)
    job.model.eval()
    embeddings, _ = embed_for(job, job.model, job.source.plain, items)
    return float((embeddings - centre).double().square().sum(1).mean().sqrt())


@torch.no_grad()
def pull_to_start(job: Job) -> None:
    """Move the weights that the last step has moved a little back to where they started (L2-SP)."""
    assert job.start is not None
    start = dict(job.start.named_parameters())
    names = {id(weight): name for name, weight in job.model.named_parameters()}
    for group, of in zip(job.optimizer.param_groups, job.groups, strict=True):
        if of.part not in ("backbone", "head"):
            continue
        share = min(1.0, group["lr"] * job.recipe.optimizer.l2_sp)
        for weight in group["params"]:
            if weight.grad is not None:
                weight.lerp_(start[names[id(weight)]], share)
