"""A head from features alone: whitened within classes in closed form, then perhaps trained, in seconds.

The backbone is not run here: features [N, F] are what it says of images once, seen as evaluation sees them.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softwarp.losses import build_loss
from softwarp.losses.contract import class_vectors_of, proxies_placed
from softwarp.models.principal import class_means, principal_head
from softwarp.models.whitening import ClassScatter
from softwarp.recipe.schema import StartPart

AUTOMATIC = {  # settings that measure themselves, so that one start suits every space
    "warped_softmax": {"alpha": "auto", "scale": "auto"},
    "euclidean_softmax": {"scale": "auto"},
}
BATCH = 64
TRAVEL = 0.5 / 32  # of the embeddings' length, that a proxy may move per step

Head = tuple[Tensor, Tensor]  # weight [size, F] and bias [size]


def starting_head(features: Tensor, labels: Tensor, size: int, start: StartPart, *, seed: int) -> Head:
    """Return the head that `start` describes, for features of training images.

    >>> features = torch.tensor([[0.0, 9.0], [2.0, 9.0], [0.0, -9.0], [2.0, -9.0]])
    >>> weight, bias = starting_head(features, torch.tensor([0, 0, 1, 1]), 2, StartPart(), seed=0)
    >>> weight.shape, bias.shape
    (torch.Size([2, 2]), torch.Size([2]))
    """
    head = whitened_head(ClassScatter.of(features, labels), features, start, size)
    if not start.steps:
        return head
    return next(trained_heads(features, labels, head, start, looks=(start.steps,), seed=seed))


def whitened_head(scatter: ClassScatter, features: Tensor, start: StartPart, size: int) -> Head:
    """Return the whitening; of another size than the features, along its principal directions of them."""
    weight, bias = scatter.whitened(math.inf if start.shrinkage is None else start.shrinkage)
    if size == len(weight):
        return weight, bias
    directions, _ = principal_head(embed((weight, bias), features), size, centre=False)
    return directions @ weight, directions @ bias


def embed(head: Head, features: Tensor) -> Tensor:
    """Return embeddings of length 1."""
    return F.normalize(F.linear(features, *head))


def trained_heads(
    features: Tensor, labels: Tensor, head: Head, start: StartPart, *, looks: Iterable[int], seed: int
) -> Iterator[Head]:
    """Yield the head after each of these numbers of steps; proxies start at class means.

    Nothing else that draws at random between two looks changes what is trained.
    """
    places = labels.unique(return_inverse=True)[1]
    loss, proxies = _placed_loss(embed(head, features), places, start, seed)
    weight, bias = (each.clone().requires_grad_() for each in head)
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight, bias], "lr": start.learning_rate},
            {"params": [proxies], "lr": TRAVEL / math.sqrt(len(weight))},
        ],
        weight_decay=0.0,
    )
    generator = torch.Generator().manual_seed(seed)
    order, done = torch.empty(0, dtype=torch.long), 0
    for look in looks:
        for _ in range(done, look):
            if not len(order):
                order = torch.randperm(len(features), generator=generator)
            batch, order = order[:BATCH], order[BATCH:]
            optimizer.zero_grad()
            loss(F.normalize(F.linear(features[batch], weight, bias)), places[batch]).backward()
            optimizer.step()
        done = look
        yield weight.detach().clone(), bias.detach().clone()


def _placed_loss(
    embeddings: Tensor, places: Tensor, start: StartPart, seed: int
) -> tuple[nn.Module, nn.Parameter]:
    """The loss, and its proxies at the means of their classes."""
    assert start.loss is not None
    classes = range(int(places.max()) + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loss = build_loss(start.loss, len(classes), embeddings.shape[1], **AUTOMATIC.get(start.loss, {}))
    proxies = class_vectors_of(loss)
    assert proxies is not None
    with torch.no_grad():
        proxies.copy_(class_means(embeddings, places, classes, unit=loss.distance == "cosine"))
    proxies_placed(loss)
    return loss, proxies
