"""From a model and images to embeddings, and from embeddings to the numbers that people print."""

import torch
from torch import Tensor, nn

from softwarp.metrics import clustering_metrics, retrieval_metrics


@torch.no_grad()
def embed(model: nn.Module, images: Tensor, *, batch_size: int = 500) -> Tensor:
    """Return the embeddings of all images, [N, D], on the CPU; the model is in evaluation mode meanwhile.

    >>> embed(nn.Flatten(), torch.zeros(3, 1, 2, 2)).shape
    torch.Size([3, 4])
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.eval()
    embeddings = torch.cat([model(batch.to(device)).float().cpu() for batch in images.split(batch_size)])
    model.train(was_training)
    return embeddings


def evaluate_embeddings(
    embeddings: Tensor, labels: Tensor, *, distance: str, ks: tuple[int, ...] = (1, 2, 4, 8), seed: int = 0
) -> dict[str, float]:
    """Return every retrieval and clustering metric. Clustering sees unit vectors where distance is cosine."""
    if distance == "cosine":
        embeddings = nn.functional.normalize(embeddings)
    return {
        **retrieval_metrics(embeddings, labels, ks=ks, distance=distance),
        **clustering_metrics(embeddings, labels, seed=seed),
    }
