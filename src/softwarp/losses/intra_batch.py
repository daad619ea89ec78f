"""Intra-batch connections (Seidenschwarz et al. 2021): samples of a batch refine one another by attention.

    loss = CE(A e / T, y)  +  CE(B BatchNorm(MPN(z)) / T, y),   z = e / |e|, both with smoothed labels
    MPN(z): h = L z, then `layers` times  h = LN(h + attention(h));  h = LN(h + MLP(h))

| symbol | parameter       | default | where |
|--------|-----------------|---------|-------|
| T      | temperature     | 0.2     | CUB 0.2, Cars 1/9, SOP 0.605: the official configurations |
| -      | layers          | 1       | message passing steps; CUB 1, Cars 2 |
| -      | heads           | 2       | of the attention; CUB 2, Cars and SOP 8; must divide embedding_size |
| -      | dropout         | 0.1     | on attention and in the MLP; only while training |
| -      | label_smoothing | 0.1     | of both cross entropies |
| A, B   | classifier, refined_classifier | - | on embeddings, and on refined embeddings |

Every sample attends to every sample of the batch, itself included; the MLP has width 4 D. All of it
is trained with the loss and gone at test. Differs from the official code: a step is torch's own encoder
layer (the same equations, with torch's first weights), and the batch norm has no frozen bias: none at all.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from softwarp.losses.contract import Card
from softwarp.losses.distances import check_batch, check_finite, widen


class MessagePassing(nn.Module):
    """Attention over the batch, `layers` times: refined embeddings, [N, D]."""

    def __init__(self, embedding_size: int, *, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(embedding_size, embedding_size)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(embedding_size, heads, 4 * embedding_size, dropout, batch_first=True)
            for _ in range(layers)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        nodes: Tensor = self.first(inputs)[None]
        for layer in self.layers:
            nodes = layer(nodes)
        return nodes[0]


class IntraBatchLoss(nn.Module):
    """The loss of two classifiers, before and after message passing between the samples of a batch.

    >>> loss = IntraBatchLoss(num_classes=10, embedding_size=4)
    >>> loss(torch.randn(3, 4), torch.tensor([0, 5, 9])).shape
    torch.Size([])
    """

    distance = "cosine"
    class_vectors = "classifier.weight"
    card: ClassVar[Card] = Card(
        title="Intra-batch connections",
        citation="Seidenschwarz, Elezi, Leal-Taixé: Learning Intra-Batch Connections for Deep Metric "
        "Learning. ICML 2021",
        year=2021,
        equation="CE(A e / T, y) + CE(B MPN(z) / T, y)",
        kind="graph",
        networks="message passing network (attention) and two classifiers",
        classes=6,
        samples=9,
        proxy_rate_ratio=1.0,
        search_space={"temperature": ("log", 0.05, 1.0), "label_smoothing": ("float", 0.0, 0.3)},
        notes="random while training, by dropout; the first weights of the attention are torch's",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        temperature: float = 0.2,
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        if not (temperature > 0 and layers > 0 and 0 <= dropout < 1 and 0 <= label_smoothing < 1):
            raise ValueError(
                "temperature and layers must be positive, dropout and label_smoothing in [0, 1), got "
                f"{temperature=}, {layers=}, {dropout=}, {label_smoothing=}"
            )
        if heads < 1 or embedding_size % heads:
            raise ValueError(f"heads must divide embedding_size {embedding_size}, got {heads}")
        self.network = MessagePassing(embedding_size, layers=layers, heads=heads, dropout=dropout)
        self.classifier = nn.Linear(embedding_size, num_classes)
        self.norm = nn.BatchNorm1d(embedding_size)
        self.norm.register_parameter("bias", None)  # the official code holds it at zero
        self.refined_classifier = nn.Linear(embedding_size, num_classes, bias=False)
        nn.init.normal_(self.refined_classifier.weight, std=0.001)
        self.temperature, self.label_smoothing = temperature, label_smoothing

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, self.classifier.weight, labels)
        check_finite(embeddings.detach().sum(), embeddings)  # before the batch norm remembers it
        if self.training and len(labels) < 2:
            raise ValueError(
                "Intra-batch connections need at least 2 embeddings in a batch while they train, got 1; "
                "raise batches.classes or batches.samples"
            )
        with torch.autocast(embeddings.device.type, enabled=False):
            wide = widen(embeddings)[0].to(self.classifier.weight.dtype)
            refined = self.norm(self.network(normalize(wide)))
            loss = self._smoothed(self.classifier(wide), labels)
            loss = loss + self._smoothed(self.refined_classifier(refined), labels)
        check_finite(loss, embeddings, self.classifier.weight)
        return loss

    def _smoothed(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits / self.temperature, labels.long(), label_smoothing=self.label_smoothing)

    def extra_repr(self) -> str:
        classes, size = self.classifier.weight.shape
        return f"num_classes={classes}, embedding_size={size}, temperature={self.temperature}"
