"""How should features be pooled, and does layer norm help them? Three frozen networks on twenty species.

    python experiments/frozen_features.py --cub CUB_200_2011 --weights WEIGHTS

Writes Recall@1 and MAP@R, cosine, of each network and pooling, with and without layer norm, into
results/frozen_features.json: what `native` and `Embedder.features` rest on. Images are prepared by timm's own
transforms at 224 pixels, the central square. WEIGHTS holds NAME.safetensors of DINOv2 and TinyViT.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image
from rich.progress import track
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import layer_norm

from softwarp.data.decode import read_image
from softwarp.data.tables import read_table
from softwarp.files import write_json
from softwarp.metrics import retrieval_metrics
from softwarp.models.backbones import build_backbone
from softwarp.runs.provenance import environment

RESULT = Path("results/frozen_features.json")
SPECIES = range(100, 120)  # the first of the test half
SIDE, BATCH = 224, 16
Poolings = dict[str, Tensor]
Folder = Annotated[Path, typer.Option()]


def efficientnet() -> tuple[Callable[[Tensor], Poolings], Callable[[Image.Image], Tensor]]:
    """Return what pools its map, and the transform of its images."""
    backbone = build_backbone("efficientnet_lite0", pretrained=True).eval()
    seen = {"interpolation": "bilinear", "crop_pct": 0.875, "mean": backbone.mean, "std": backbone.std}

    def pooled(images: Tensor) -> Poolings:
        features = backbone(images)
        return {"avg": features.mean((2, 3)), "max": features.amax((2, 3))}

    return pooled, transform(seen)


def tiny_vit(weights: Path) -> tuple[Callable[[Tensor], Poolings], Callable[[Image.Image], Tensor]]:
    """Return what pools its map in its own way and as we do, and the transform of its images."""
    model = pretrained("tiny_vit_5m_224", weights / "tiny_vit_5m_224_in22k.safetensors")

    def pooled(images: Tensor) -> Poolings:
        features = model.forward_features(images)
        native = model.forward_head(features, pre_logits=True)
        places = model.head.norm(features)  # of each place, as without pooling
        return {"native": native, "avg": places.mean((2, 3)), "max": places.amax((2, 3))}

    return pooled, transform({"interpolation": "bicubic", "crop_pct": 0.95})


def dinov2(weights: Path) -> tuple[Callable[[Tensor], Poolings], Callable[[Image.Image], Tensor]]:
    """Return what gives its class token and pools its patches, and the transform of its images."""
    name = "vit_small_patch14_dinov2"
    model = pretrained(name, weights / f"{name}.safetensors", dynamic_img_size=True)

    def pooled(images: Tensor) -> Poolings:
        tokens = model.forward_features(images)
        native = model.forward_head(tokens, pre_logits=True)
        return {"native": native, "mean": tokens[:, 1:].mean(1), "max": tokens[:, 1:].amax(1)}

    return pooled, transform({"interpolation": "bicubic", "crop_pct": 1.0})


def pretrained(name: str, weights: Path, **options: Any) -> Any:
    """Return timm's model with these weights as float32, without its classifier."""
    import timm

    model = timm.create_model(name, num_classes=0, **options)
    model.load_state_dict({key: tensor.float() for key, tensor in load_file(weights).items()})
    return model.eval()


def transform(settings: dict[str, Any]) -> Callable[[Image.Image], Tensor]:
    """Return timm's transform for evaluation."""
    from timm.data.transforms_factory import create_transform

    prepare: Callable[[Image.Image], Tensor] = create_transform((3, SIDE, SIDE), **settings)
    return prepare


@torch.no_grad()
def features_of(
    files: list[Path],
    labels: Tensor,
    network: tuple[Callable[[Tensor], Poolings], Callable[[Image.Image], Tensor]],
    kept: Path | None,
) -> Poolings:
    """Return the pooled features of all files, those kept from before if there are any."""
    if kept is not None and kept.is_file():
        found: Poolings = torch.load(kept, weights_only=True)
        assert found["labels"].unique(return_inverse=True)[1].equal(labels)
        return found
    pooled, prepare = network
    starts = track(range(0, len(files), BATCH), "images")
    batches = [
        pooled(torch.stack([prepare(read_image(file)) for file in files[start : start + BATCH]]))
        for start in starts
    ]
    found = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    if kept is not None:
        torch.save(found | {"labels": labels}, kept)
    return found


def rows_of(name: str, pooled: Poolings, labels: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the figures of each pooling, as it is and after layer norm."""
    for pooling, features in pooled.items():
        row: dict[str, Any] = {"network": name, "pooling": pooling, "channels": features.shape[1]}
        for norm, seen in (("plain", features), ("layer_norm", layer_norm(features, features.shape[1:]))):
            figures = retrieval_metrics(seen, labels, distance="cosine")
            row[norm] = {metric: figures[metric] for metric in ("recall@1", "map@r")}
        yield row


def main(cub: Folder, weights: Folder, cache: Annotated[Path | None, typer.Option()] = None) -> None:
    """Measure all of them and write results/frozen_features.json."""
    table = read_table("cub", cub)
    there = [place for place, label in enumerate(table.labels.tolist()) if label in SPECIES]
    files = [table.root / table.paths[place] for place in there]
    labels = torch.tensor([int(table.labels[place]) - SPECIES.start for place in there])

    def features(name: str, network: Any) -> Poolings:
        return features_of(files, labels, network, None if cache is None else cache / f"{name}.pt")

    lite, tiny, dino = (
        features("lite0_bilinear", efficientnet()),
        features("tinyvit", tiny_vit(weights)),
        features("dinov2", dinov2(weights)),
    )
    poolings: dict[str, Poolings] = {
        "efficientnet_lite0": {"avg": lite["avg"], "max+avg": lite["max"] + lite["avg"]},
        "tiny_vit_5m_224": {"native": tiny["native"], "max+avg": tiny["max"] + tiny["avg"]},
        "vit_small_patch14_dinov2": {
            "native": dino["native"],
            "token+mean": torch.cat([dino["native"], dino["mean"]], dim=1),
            "avg": dino["mean"],
            "max+avg": dino["max"] + dino["mean"],
        },
    }
    content = {
        "command": "python experiments/frozen_features.py --cub CUB_200_2011 --weights WEIGHTS",
        "images": len(files),
        "classes": len(SPECIES),
        "side": SIDE,
        "rows": [row for name, each in poolings.items() for row in rows_of(name, each, labels)],
        "environment": environment(),
    }
    write_json(RESULT, content)


if __name__ == "__main__":
    typer.run(main)
