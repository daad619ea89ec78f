"""The warped softmax in a Lightning module: proxies are trained, saved and restored with the model."""

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from softwarp import WarpedSoftmaxLoss
from softwarp.data.class_groups import items_of, split_classes
from softwarp.data.glyphs import load_glyphs
from softwarp.data.sampling import BalancedBatches
from softwarp.metrics import retrieval_metrics
from softwarp.models.embedder import Embedder


class MetricLearning(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, num_classes: int, embedding_size: int = 128) -> None:
        super().__init__()
        self.model = Embedder("small_conv", embedding_size)  # any nn.Module that returns [N, D]
        self.loss = WarpedSoftmaxLoss(num_classes, embedding_size)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def on_train_epoch_start(self) -> None:  # other batches in every epoch
        self.trainer.train_dataloader.batch_sampler.epoch = self.current_epoch

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        value: Tensor = self.loss(self.model(batch[0]), batch[1])
        return value

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.seen.append((self.model(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:  # recall needs all images, not the mean over batches
        embeddings, labels = (torch.cat(part) for part in zip(*self.seen, strict=True))
        self.seen.clear()
        self.log("map@r", retrieval_metrics(embeddings, labels, distance=self.loss.distance)["map@r"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        proxies = {"params": self.loss.parameters(), "lr": 0.03}  # proxies learn faster than the model
        return torch.optim.Adam([{"params": self.model.parameters(), "lr": 0.003}, proxies])


def main(epochs: int = 5, max_classes: int | None = None) -> dict[str, float]:
    lightning.seed_everything(0, verbose=False)
    glyphs = load_glyphs()
    split = split_classes(len(glyphs.characters))
    items, labels = items_of(glyphs.labels, split.train[:max_classes])
    unseen, unseen_labels = items_of(glyphs.labels, split.validation[:max_classes])
    batches = BalancedBatches(labels, classes_per_batch=32, samples_per_class=4, seed=0)
    train = DataLoader(TensorDataset(glyphs.images[items], labels), batch_sampler=batches)
    judge = DataLoader(TensorDataset(glyphs.images[unseen], unseen_labels), batch_size=500)
    module = MetricLearning(int(labels.max()) + 1)
    quiet = {"logger": False, "enable_checkpointing": False, "use_distributed_sampler": False}
    trainer = lightning.Trainer(max_epochs=epochs, **quiet)
    before = trainer.validate(module, judge, verbose=False)[0]["map@r"]
    trainer.fit(module, train, judge)
    return {"before": before, "map@r": float(trainer.callback_metrics["map@r"])}


if __name__ == "__main__":
    print(main())
