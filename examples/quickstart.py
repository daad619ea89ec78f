"""The warped softmax in a bare torch loop: train on some characters, retrieve others, in about a minute."""

import torch

from softwarp import WarpedSoftmaxLoss
from softwarp.data.class_groups import items_of, split_classes
from softwarp.data.glyphs import load_glyphs
from softwarp.data.sampling import BalancedBatches
from softwarp.evaluation import embed
from softwarp.metrics import average_distance_to_proxy, retrieval_metrics
from softwarp.models.embedder import Embedder


def main(epochs: int = 5, max_classes: int | None = None) -> dict[str, float]:
    torch.manual_seed(0)
    glyphs = load_glyphs()  # your own images: bytes [N, channels, H, W] and labels [N]
    split = split_classes(len(glyphs.characters))
    items, labels = items_of(glyphs.labels, split.train[:max_classes])
    images = glyphs.images[items]

    model = Embedder("small_conv", embedding_size=128)  # any nn.Module that returns [N, D]
    loss = WarpedSoftmaxLoss(int(labels.max()) + 1, 128)
    optimizer = torch.optim.Adam(
        [
            {"params": model.parameters(), "lr": 0.003},
            {"params": loss.parameters(), "lr": 0.03},  # proxies learn faster than the model
        ]
    )
    batches = BalancedBatches(labels, classes_per_batch=32, samples_per_class=4, seed=0)

    for epoch in range(epochs):
        batches.epoch = epoch
        for batch in batches:
            value = loss(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        distance = average_distance_to_proxy(embed(model, images), labels, loss.proxies.detach())
        alpha = loss.readings()["alpha"]  # measured in the first batch, as the scale is in every one
        print(
            f"epoch {epoch + 1}: loss {value.item():.3f}, "
            f"mean distance to the proxy {distance:.2f} (alpha {alpha:.2f})"
        )

    items, labels = items_of(glyphs.labels, split.validation[:max_classes])  # classes never seen
    metrics = retrieval_metrics(embed(model, glyphs.images[items]), labels, distance=loss.distance)
    print(f"unseen characters: Recall@1 {metrics['recall@1']:.3f}, MAP@R {metrics['map@r']:.3f}")
    return metrics


if __name__ == "__main__":
    main()
