"""HIST (Lim et al. 2022): class distributions make a hypergraph of the batch, a network classifies on it.

    loss = mean_i -log softmax_c(-tau d_ic)[y_i]  +  lambda mean_i CE(HGNN(X, H)_i, y_i)
    d_ic = sum_f (z_if - m_cf)^2 / exp(v_cf),   z = e / |e|,  m = mu / |mu|,  v = clip(log variance, 0, 6)
    H_ic = 1 if y_i = c else exp(-alpha d_ic),   for the classes c of the batch
    HGNN = G Theta2( LeakyReLU(BatchNorm(G Theta1(X))) ),   G = Dv^-1/2 H De^-1 H^T Dv^-1/2

| symbol   | parameter     | default | where |
|----------|---------------|---------|-------|
| mu, v    | means, log_variances | - | learned class distributions |
| tau      | tau           | 32.0    | CUB and Cars 32, SOP 16: the official README |
| alpha    | alpha         | 1.1     | CUB 1.1, Cars 0.9, SOP 2.0: the official README |
| lambda_s | weight        | 1.0     | the official default |
| -        | hidden        | 512     | width of the hypergraph network |
| -        | -             | 0.1     | slope of the leaky rectifier below zero |
| Dv, De   | -             | -       | degrees of samples and of hyperedges, row and column sums of H |

The network is trained with the loss and unused at test time. Differs from the official code: samples whose
probability underflows are not dropped (the softmax stays in log-space); the model's last layer norm is
done here before the network, so that any model serves (on a layer-normed embedding it changes nothing);
d comes from matrix products, N x C x D numbers are never held.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, leaky_relu, normalize

from softwarp.losses.checks import check_not_negative, check_positive, check_whole
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.distances import check_batch, check_finite, check_for_batch_norm, init_proxies, widen


def mahalanobis_distances(embeddings: Tensor, means: Tensor, log_variances: Tensor) -> Tensor:
    """Return the squared distance of each unit embedding to each class distribution, [N, C].

    >>> east, north = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    >>> mahalanobis_distances(east, north, torch.zeros(1, 2))
    tensor([[2.]])
    """
    embeddings, means, log_variances = widen(embeddings, means, log_variances)
    z, m = normalize(embeddings), normalize(means)
    precision = torch.exp(-log_variances.clamp(0, 6))
    return z.square() @ precision.T - 2 * z @ (m * precision).T + (m.square() * precision).sum(dim=1)


def propagation_matrix(distances: Tensor, labels: Tensor, *, alpha: float = 1.1) -> Tensor:
    """Return G, [N, N]: how far the label of one sample reaches another over the hyperedges.

    >>> propagation_matrix(torch.tensor([[0.0, 1e9], [1e9, 0.0]]), torch.tensor([0, 1]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    present = labels.unique()
    own = labels[:, None] == present
    incidence = torch.exp(-alpha * distances[:, present]).masked_fill(own, 1.0)
    edges = incidence / incidence.sum(dim=1, keepdim=True).sqrt()
    return (edges / incidence.sum(dim=0)) @ edges.T


class HypergraphNetwork(nn.Module):
    """Two linear layers, each followed by a walk over the hypergraph: class logits, [N, C]."""

    def __init__(self, num_classes: int, embedding_size: int, *, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(embedding_size, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, num_classes)

    def forward(self, embeddings: Tensor, propagation: Tensor) -> Tensor:
        inputs = layer_norm(embeddings, embeddings.shape[1:])
        activations = leaky_relu(self.norm(propagation @ self.first(inputs)), 0.1)
        logits: Tensor = propagation @ self.second(activations)
        return logits


class HISTLoss(nn.Module):
    """The HIST loss over a batch, with learned class distributions and a hypergraph network."""

    distance = "cosine"
    class_vectors = "means"
    card: ClassVar[Card] = Card(
        title="HIST",
        citation="Lim, Yun, Park, Choi: Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning. "
        "CVPR 2022",
        equation="-log softmax_c(-tau d_ic)[y_i] + weight CE(hypergraph network)",
        kind="graph",
        networks="hypergraph network of two layers",
        training=Training(
            by="official code",
            batch=32,
            rate_ratio=833.0,
            details="CUB rate 1.2e-4, distributions 0.1, network 5 times the model's; Cars 1e-4, 0.1 and 10"
            " times; SOP 1e-4, 0.01 and 10 times",
        ),
        proxy_rate_ratio=10.0,
        search_space={"tau": ("log", 2.0, 256.0), "alpha": ("float", 0.5, 3.0), "weight": ("log", 0.1, 10.0)},
        notes="the official code gives distributions 100 (SOP) to 1000 times and the network 5 to 10 times "
        "the model's learning rate; here both share one ratio, and 10 is ours",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        tau: float = 32.0,
        alpha: float = 1.1,
        weight: float = 1.0,
        hidden: int = 512,
    ) -> None:
        super().__init__()
        check_positive(tau=tau, alpha=alpha)
        check_not_negative(weight=weight)
        check_whole(hidden=hidden)
        self.means = init_proxies(num_classes, embedding_size)
        self.log_variances = init_proxies(num_classes, embedding_size)
        self.network = HypergraphNetwork(num_classes, embedding_size, hidden=hidden)
        self.tau, self.alpha, self.weight = tau, alpha, weight

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, self.means, labels)
        check_for_batch_norm(embeddings, training=self.training)
        labels = labels.long()
        with torch.autocast(embeddings.device.type, enabled=False):
            wide = widen(embeddings)[0].to(self.means.dtype)
            distances = mahalanobis_distances(wide, self.means, self.log_variances)
            logits = self.network(wide, propagation_matrix(distances, labels, alpha=self.alpha))
            loss = cross_entropy(-self.tau * distances, labels) + self.weight * cross_entropy(logits, labels)
        check_finite(loss, embeddings, self.means)
        return loss
