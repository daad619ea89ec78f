"""Intra-batch connections (Seidenschwarz et al. 2021): samples of a batch refine one another by attention.

    loss = CE(A e / T, y)  +  CE(B BatchNorm(MPN(z)) / T, y),   z = e / |e|, both with smoothed labels
    MPN(z): h = L z, then `layers` times  h = LN(h + attention(h));  h = LN(h + MLP(h))
    attention(h)_i = O sum_j v_j exp(a_ij) / (1 + sum_l exp(a_il)),   a_ij = q_i . k_j / sqrt(D / heads)

| symbol | parameter       | default | where |
|--------|-----------------|---------|-------|
| T      | temperature     | 0.2     | CUB 0.2, Cars 1/9, SOP 0.605: the official configurations |
| -      | layers          | 1       | message passing steps; CUB 1, Cars 2 |
| -      | concatenate     | False   | whether B sees the outputs of all steps side by side; Cars True |
| -      | heads           | 2       | of the attention; CUB 2, Cars and SOP 8; must divide embedding_size |
| -      | dropout         | 0.1     | on attention and in the MLP; only while training |
| -      | label_smoothing | 0.1     | of both cross entropies |
| A, B   | classifier, refined_classifier | - | on embeddings, and on refined embeddings |

Every sample attends to every sample of the batch, itself included; the MLP has width 4 D. All of it
is trained with the loss and unused at test time. The 1 in the denominator, which lets a sample attend to
nothing, is in the official code and not in the paper. Differs from the official code: the batch norm has no
bias at all, instead of a frozen one.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from softwarp.losses.checks import check_positive, check_share, check_whole
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.distances import check_batch, check_finite, check_for_batch_norm, widen


class MessagePassing(nn.Module):
    """Attention over the batch, `layers` times: refined embeddings, [N, D] or [N, layers D]."""

    def __init__(
        self, embedding_size: int, *, layers: int, heads: int, dropout: float, concatenate: bool
    ) -> None:
        super().__init__()
        self.first = nn.Linear(embedding_size, embedding_size)
        self.layers = nn.ModuleList(Step(embedding_size, heads, dropout) for _ in range(layers))
        self.concatenate = concatenate

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: list[Tensor] = [self.first(inputs)]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        return torch.cat(outputs[1:], dim=1) if self.concatenate else outputs[-1]


class Step(nn.Module):
    """One step of message passing: h = LN(h + attention(h)); h = LN(h + MLP(h))."""

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        # A key and a value of zeros: the 1 in the denominator of the attention.
        self.attention = nn.MultiheadAttention(size, heads, dropout, add_zero_attn=True)
        for weight in (*self.attention.in_proj_weight.chunk(3), self.attention.out_proj.weight):
            nn.init.xavier_uniform_(weight.data)
        self.mlp = nn.Sequential(
            nn.Linear(size, 4 * size), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * size, size)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor) -> Tensor:
        mixed = self.attention(nodes, nodes, nodes, need_weights=False)[0]
        nodes = self.norms[0](nodes + self.dropout(mixed))
        refined: Tensor = self.norms[1](nodes + self.dropout(self.mlp(nodes)))
        return refined


class IntraBatchLoss(nn.Module):
    """The loss of two classifiers, before and after message passing between the samples of a batch."""

    distance = "cosine"
    class_vectors = "classifier.weight"
    card: ClassVar[Card] = Card(
        title="Intra-batch connections",
        citation="Seidenschwarz, Elezi, Leal-Taixé: Learning Intra-Batch Connections for Deep Metric "
        "Learning. ICML 2021",
        equation="CE(A e / T, y) + CE(B MPN(z) / T, y)",
        kind="graph",
        networks="message passing network (attention) and two classifiers",
        training=Training(
            by="official code",
            batch=(6, 9),
            optimizer="radam",
            rate_ratio=1.0,
            details="CUB rate 1.56e-4; Cars 10 x 7, 3.67e-4; SOP 15 x 6, 2.47e-4; 70 epochs, a tenth from "
            "31 on",
        ),
        search_space={"temperature": ("log", 0.05, 1.0), "label_smoothing": ("float", 0.0, 0.3)},
        notes="random while training, by dropout; the attention has 1 more in its denominator than a "
        "softmax, as in the official code; Cars has 2 layers, 8 heads and concatenate",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        temperature: float = 0.2,
        layers: int = 1,
        heads: int = 2,
        concatenate: bool = False,
        dropout: float = 0.1,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        check_whole(layers=layers)
        check_share(dropout=dropout, label_smoothing=label_smoothing)
        if heads < 1 or embedding_size % heads:
            raise ValueError(f"heads must divide embedding_size {embedding_size}, got {heads}")
        self.network = MessagePassing(
            embedding_size, layers=layers, heads=heads, dropout=dropout, concatenate=concatenate
        )
        refined_size = layers * embedding_size if concatenate else embedding_size
        self.classifier = nn.Linear(embedding_size, num_classes)
        self.norm = nn.BatchNorm1d(refined_size)
        self.norm.register_parameter("bias", None)  # the official code holds it at zero
        self.refined_classifier = nn.Linear(refined_size, num_classes, bias=False)
        nn.init.normal_(self.refined_classifier.weight, std=0.001)
        self.temperature, self.label_smoothing = temperature, label_smoothing

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, self.classifier.weight, labels)
        check_for_batch_norm(embeddings, training=self.training)
        with torch.autocast(embeddings.device.type, enabled=False):
            wide = widen(embeddings)[0].to(self.classifier.weight.dtype)
            refined = self.norm(self.network(normalize(wide)))
            loss = self._smoothed(self.classifier(wide), labels)
            loss = loss + self._smoothed(self.refined_classifier(refined), labels)
        check_finite(loss, embeddings, self.classifier.weight)
        return loss

    def _smoothed(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits / self.temperature, labels.long(), label_smoothing=self.label_smoothing)
