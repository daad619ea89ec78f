"""Distances from embeddings to proxies, and the checks that every proxy loss makes of its input."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from softwarp.losses.checks import check_choice, check_sizes


def euclidean_distances(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Return |e_i - p_j| as [N, C], from direct differences, in at least float32.

    The usual expansion |e|^2 + |p|^2 - 2ep loses all digits where distances are small compared with
    norms; this form does not, and its gradient at distance zero is zero. It is slow but exact.

    >>> euclidean_distances(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]))
    tensor([[5.]])
    """
    embeddings, proxies = widen(embeddings, proxies)
    return torch.cdist(embeddings, proxies, compute_mode="donot_use_mm_for_euclid_dist")


def cosine_similarities(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Return cos(e_i, p_j) as [N, C], in at least float32, also under autocast; 0 for a zero vector.

    >>> cosine_similarities(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[1., 0.]])
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        unit_embeddings, unit_proxies = map(normalize, widen(embeddings, proxies))
        return unit_embeddings @ unit_proxies.T


def widen(*tensors: Tensor) -> list[Tensor]:
    """Return the tensors in their widest common type, at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


def check_batch(embeddings: Tensor, proxies: Tensor, labels: Tensor) -> None:
    """Raise a ValueError that says what is wrong with the shapes, types or labels, if anything is."""
    if proxies.dim() != 2:
        raise ValueError(f"proxies must be [C, D], got {list(proxies.shape)}")
    check_input(embeddings, labels, *proxies.shape)


def check_input(embeddings: Tensor, labels: Tensor, num_classes: int, embedding_size: int) -> None:
    """Raise a ValueError that says what is wrong with a batch, for a loss that may have no proxies."""
    if embeddings.dim() != 2 or embeddings.shape[1] != embedding_size:
        raise ValueError(
            f"embeddings must be [N, D] with D = {embedding_size}, got {list(embeddings.shape)}; flatten "
            "each sample, and construct the loss with embedding_size equal to the model's output size"
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings must be floating point, got {embeddings.dtype}; call .float() on them")
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"labels must be [N] = [{embeddings.shape[0]}], one for each embedding, got {list(labels.shape)}"
        )
    if labels.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"labels must be integers (class indices), got {labels.dtype}; call .long() on them")
    if not len(labels):
        raise ValueError("the batch is empty: give at least one embedding")
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must be 0 to {num_classes - 1} for {num_classes} classes, got {low} to {high}; "
            "renumber the classes or construct the loss with a larger num_classes"
        )


def check_finite(loss: Tensor, embeddings: Tensor, proxies: Tensor | None = None) -> None:
    """Raise a ValueError that names the rows which made the loss NaN or infinite, if any did."""
    if math.isfinite(loss.detach().sum()):
        return
    tensors = {"embeddings": embeddings} | ({} if proxies is None else {"proxies": proxies})
    for name, tensor in tensors.items():
        rows = (~torch.isfinite(tensor)).flatten(1).any(dim=1).nonzero().flatten().tolist()
        if rows:
            shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            raise ValueError(
                f"{name} hold NaN or infinity in {len(rows)} of {len(tensor)} rows ({shown}): "
                "lower the learning rate or clip gradients, and look at the input of those rows"
            )
    reach = ", ".join(f"{name} reach {tensor.abs().max():.3g}" for name, tensor in tensors.items())
    raise ValueError(f"the loss overflows {loss.dtype}: {reach}; lower the learning rate or the scale")


def check_for_batch_norm(embeddings: Tensor, *, training: bool) -> None:
    """Raise a ValueError for a batch that a batch norm must not record: not finite, or of one sample."""
    check_finite(embeddings.detach().sum(), embeddings)
    if training and len(embeddings) < 2:
        raise ValueError(
            "the batch norm of this loss needs at least 2 embeddings in a batch while it trains, got 1; "
            "raise batches.classes or batches.samples, or lower batches.accumulate"
        )


def log_one_plus_sum(exponents: Tensor, chosen: Tensor) -> Tensor:
    """Return log(1 + the sum of exp of the chosen ones) over the last dimension; 0 if none is chosen."""
    return pad(exponents.masked_fill(~chosen, -torch.inf), (1, 0)).logsumexp(-1)


def init_proxies(num_classes: int, embedding_size: int, init: str = "kaiming") -> nn.Parameter:
    """Return proxies [C, D], drawn by one of `PROXY_INITS`.

    For a loss that looks at directions alone, SGD turns a long vector more slowly, by the square of its
    length, so each loss has the start that suits its learning rates.

    - `kaiming`: the authors' of the warped softmax (normal, fan out: deviation sqrt(2 / C));
    - `kaiming_in`: that of the large-margin softmax (normal, fan in: deviation sqrt(2 / D));
    - `insightface`: normal, deviation 0.01, as insightface draws for every loss and the authors for faces;
    - `linear`: that of torch's linear layer (uniform between -1 / sqrt(D) and 1 / sqrt(D));
    - `unit`: MagFace's (a uniform point of the cube, scaled to length 1);
    - `proxy_nca_pp`: that of ProxyNCA++ (normal, deviation 1/8);
    - `normal`: deviation 1; `zeros`: all of them on the origin.
    """
    check_choice(init, PROXY_INITS, "proxy_init")
    proxies = torch.empty(check_sizes(num_classes, embedding_size))
    PROXY_INITS[init](proxies)
    return nn.Parameter(proxies)


def _uniform_directions(proxies: Tensor) -> None:
    proxies.uniform_(-1, 1).copy_(normalize(proxies))


PROXY_INITS: dict[str, Callable[[Tensor], object]] = {
    "kaiming": lambda proxies: nn.init.kaiming_normal_(proxies, mode="fan_out"),
    "kaiming_in": lambda proxies: nn.init.kaiming_normal_(proxies, mode="fan_in"),
    "insightface": lambda proxies: nn.init.normal_(proxies, std=0.01),
    "linear": lambda proxies: nn.init.uniform_(
        proxies, -(proxies.shape[1] ** -0.5), proxies.shape[1] ** -0.5
    ),
    "unit": _uniform_directions,
    "proxy_nca_pp": lambda proxies: nn.init.normal_(proxies, std=1 / 8),
    "normal": nn.init.normal_,
    "zeros": nn.init.zeros_,
}
