"""Your own loss: one file like this one, and one line in LOSSES. Runs in a few seconds.

    python examples/own_loss.py            a bare loop on made-up points
    python examples/own_loss.py --train    the trainer of softwarp on glyphs, two minutes

The command line takes the file as it is: softwarp train loss.name=examples/own_loss.py:StudentLoss.
In softwarp itself the line goes into losses/__init__.py.
"""

import sys
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from softwarp import LOSSES, build_loss
from softwarp.losses.contract import Card, Training
from softwarp.losses.distances import check_batch, check_finite, euclidean_distances, init_proxies
from softwarp.metrics import retrieval_metrics
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.overrides import change_loss
from softwarp.recipe.schema import parse_recipe
from softwarp.training.train import train_recipe


class StudentLoss(nn.Module):
    """A softmax over Student's t kernel of the distances to one learned proxy per class."""

    distance = "euclidean"  # evaluation measures as the loss does
    class_vectors = "proxies"  # the parameter with one vector per class; None for a loss without
    card: ClassVar[Card] = Card(
        title="Student softmax",
        citation="None: it is an example. 2024",
        year=2024,
        equation="-log softmax_j(-freedom log(1 + |e_i - p_j|^2 / freedom))[y_i]",
        kind="proxies",
        training=Training(by="ours", batch=(32, 4), optimizer="adam", rate_ratio=100.0, details="glyphs"),
        proxy_rate_ratio=100.0,
        search_space={"freedom": ("log", 0.5, 50.0)},
    )

    def __init__(self, num_classes: int, embedding_size: int, *, freedom: float = 5.0) -> None:
        super().__init__()
        if not freedom > 0:
            raise ValueError(f"freedom must be positive, got {freedom}")
        self.proxies = init_proxies(num_classes, embedding_size)
        self.freedom = freedom

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, self.proxies, labels)
        squares = euclidean_distances(embeddings, self.proxies) ** 2
        loss = cross_entropy(-self.freedom * torch.log1p(squares / self.freedom), labels)
        check_finite(loss, embeddings, self.proxies)
        return loss


LOSSES["student"] = StudentLoss  # from here on recipes and search know it by name


def main(steps: int = 200) -> float:
    torch.manual_seed(0)
    labels = torch.arange(8).repeat(16)
    samples = 3 * torch.randn(8, 20)[labels] + torch.randn(128, 20)
    model = nn.Linear(20, 4)
    loss = build_loss("student", num_classes=8, embedding_size=4, freedom=2.0)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.02)
    for step in range(steps):
        value = loss(model(samples), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {value.item():.3f}")
    recall = retrieval_metrics(model(samples).detach(), labels, distance="euclidean")["recall@1"]
    print(f"Recall@1 {recall:.3f}")
    return recall


def train_on_glyphs(folder: Path = Path("runs/student")) -> float:
    settings = change_loss(read_settings(find_recipe("glyphs_euclidean_softmax")), "student")
    run = train_recipe(parse_recipe(settings), folder, resume=True)
    recall: float = run.result().metrics["recall@1"]
    print(f"Recall@1 {recall:.3f} on characters never seen: {run.folder}")
    return recall


if __name__ == "__main__":
    train_on_glyphs() if "--train" in sys.argv else main()
