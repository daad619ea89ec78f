"""The warped softmax in pytorch-metric-learning's flow: its sampler, a second loss with its miner, metrics.

In its trainers, too, the loss goes where any of its classifier losses goes, and the proxies get an optimizer
of their own. They pass a third argument, the mined tuples: wrap ours as `lambda e, l, *_: loss(e, l)`.
"""

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch.utils.data import DataLoader, TensorDataset

from softwarp import WarpedSoftmaxLoss
from softwarp.data.class_groups import items_of, split_classes
from softwarp.data.glyphs import load_glyphs
from softwarp.evaluation import embed
from softwarp.models.embedder import Embedder


def main(epochs: int = 5, max_classes: int | None = None) -> dict[str, float]:
    torch.manual_seed(0)
    glyphs = load_glyphs()
    split = split_classes(len(glyphs.characters))
    items, labels = items_of(glyphs.labels, split.train[:max_classes])
    unseen, unseen_labels = items_of(glyphs.labels, split.validation[:max_classes])
    # Their metrics search by raw Euclidean distance unless told otherwise, as our loss wants it.
    calculator = AccuracyCalculator(include=("precision_at_1", "mean_average_precision_at_r"))

    model = Embedder("small_conv", embedding_size=128)  # any nn.Module that returns [N, D]
    loss = WarpedSoftmaxLoss(int(labels.max()) + 1, 128)
    pairs, miner = MultiSimilarityLoss(), MultiSimilarityMiner()  # optional: a loss over pairs beside ours
    optimizer = torch.optim.Adam(
        [{"params": model.parameters(), "lr": 0.003}, {"params": loss.parameters(), "lr": 0.03}]
    )
    sampler = MPerClassSampler(labels, m=4, batch_size=128, length_before_new_iter=len(labels))
    loader = DataLoader(TensorDataset(glyphs.images[items], labels), batch_size=128, sampler=sampler)

    def accuracy() -> dict[str, float]:
        embeddings = embed(model, glyphs.images[unseen])
        measured: dict[str, float] = calculator.get_accuracy(embeddings, unseen_labels)
        return measured

    before = accuracy()["mean_average_precision_at_r"]
    for epoch in range(epochs):
        for images, targets in loader:
            embeddings = model(images)
            value = loss(embeddings, targets) + 0.1 * pairs(embeddings, targets, miner(embeddings, targets))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {value.item():.3f}, {accuracy()}")
    return accuracy() | {"before": before}


if __name__ == "__main__":
    main()
