"""Exports beside torch: size, time as a ratio within one run, difference, and what int8 costs.

    python benchmarks/export.py                     # three backbones on random images
    python benchmarks/export.py RUN [RUN ...]       # also the recall of finished runs, on their own images

Writes results/benchmark_export.json and the tables in docs/export.md. One thread.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import softwarp
from softwarp.export.check import compare_with_torch, images_to_check
from softwarp.export.formats import (
    LINEAR,
    Forward,
    quantise,
    run_onnx,
    run_torch_export,
    to_onnx,
    to_torch_export,
)
from softwarp.files import write_json, write_text
from softwarp.inference import EmbeddingModel
from softwarp.models.embedder import Embedder
from softwarp.runs.provenance import environment
from softwarp.runs.run import Run

ROOT = Path(__file__).parent.parent
RESULT, DOCS = ROOT / "results" / "benchmark_export.json", ROOT / "docs" / "export.md"
START, END = "<!-- table: benchmark_export -->\n", "<!-- end of table: benchmark_export -->"
SIDES = {"small_conv": 32, "efficientnet_lite0": 128, "vit_tiny_patch16_224": 224}
IMAGES, ROUNDS, WHOLE = 8, 5, 10_000
RUN_HEADS = ["run", "images", "difference", "same 10 nearest", "Recall@1", "int8: same 10", "int8: Recall@1"]
FORMS = {
    "torch": "torch",
    "torch_export": "torch.export",
    "onnx": "ONNX",
    "int8": "ONNX int8: linear layers",
    "int8_everywhere": "ONNX int8: convolutions too",
}


def untrained(name: str) -> EmbeddingModel:
    """A backbone with ImageNet weights where a package has them, otherwise random ones."""
    torch.manual_seed(0)
    network = Embedder(name, 128, pretrained=name == "efficientnet_lite0", pooling="max+avg").eval()
    return EmbeddingModel(
        network, "euclidean", resize=SIDES[name], crop=SIDES[name], device=torch.device("cpu")
    )


def int8_everywhere(content: bytes) -> bytes:
    """What `quantise` does not do, in the form that onnxruntime runs fastest: bytes without sign."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        kinds = (*LINEAR, "Conv")
        quantize_dynamic(
            onnx.load_from_string(content), path, op_types_to_quantize=kinds, weight_type=QuantType.QUInt8
        )
        return path.read_bytes()


def forms(model: EmbeddingModel) -> dict[str, tuple[int, Forward]]:
    """Each form of a model: its bytes and its function."""
    onnx, pt2 = to_onnx(model), to_torch_export(model)
    files = {"onnx": onnx, "int8": quantise(onnx).content, "int8_everywhere": int8_everywhere(onnx)}
    weights = sum(each.nbytes for each in model.network.state_dict().values())
    made: dict[str, tuple[int, Forward]] = {"torch": (weights, model.network)}
    made["torch_export"] = (len(pt2), run_torch_export(pt2))
    return made | {name: (len(content), run_onnx(content, threads=1)) for name, content in files.items()}


@torch.no_grad()
def measure(model: EmbeddingModel, images: Tensor) -> dict[str, dict[str, float]]:
    """Size, time over torch's (the best of rounds in turn), and largest error over the largest coordinate."""
    made = forms(model)
    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    expected = model.network(images)
    for round_ in range(ROUNDS + 1):  # the first warms up
        for name, (_, forward) in made.items():
            start = time.perf_counter()
            forward(images)
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "bytes": size,
            "time": min(seconds[name]) / min(seconds["torch"]),
            "error": float((forward(images) - expected).abs().max() / expected.abs().max()),
        }
        for name, (size, forward) in made.items()
    }


def judge(folder: Path) -> dict[str, Any]:
    """A finished run exported to ONNX and int8: difference, neighbours and recall on its evaluated images."""
    model, run = softwarp.load(folder, device="cpu"), Run(folder)
    images = images_to_check(folder, model, count=WHOLE)
    content = to_onnx(model)
    whole, small = (
        compare_with_torch(run_onnx(each), model, images) for each in (content, quantise(content).content)
    )
    assert whole.recall is not None
    assert small.recall is not None
    return {
        "data": run.recipe().data.name,
        "backbone": run.recipe().model.backbone,
        "images": whole.images,
        "difference": whole.difference,
        "same_neighbours": whole.same_neighbours,
        "int8_same_neighbours": small.same_neighbours,
        "recall@1": whole.recall[1],
        "int8_recall@1": small.recall[1],
    }


def tables(result: dict[str, Any]) -> str:
    """Markdown of a result: forms of each backbone, then runs."""
    lines = [["form", *SIDES], ["---", *["---:"] * len(SIDES)]]
    for name, title in FORMS.items():
        parts = [result["models"][backbone][name] for backbone in SIDES]
        lines.append(
            [
                title,
                *(
                    f"{each['bytes'] / 1e6:.1f} MB, {each['time']:.2f}x, {each['error']:.0e}"
                    for each in parts
                ),
            ]
        )
    lines += [[], RUN_HEADS, ["---", *["---:"] * 6]]
    for run in result["runs"]:
        lines.append(
            [
                f"{run['backbone']} on {run['data']}",
                f"{run['images']:,}",
                f"{run['difference']:.1e}",
                f"{run['same_neighbours']:,}",
                f"{100 * run['recall@1']:.1f}",
                f"{run['int8_same_neighbours']:,}",
                f"{100 * run['int8_recall@1']:.1f}",
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" if line else "\n" for line in lines)


def main() -> None:
    torch.set_num_threads(1)
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {"runs": []}
    result: dict[str, Any] = {
        "models": {},
        "runs": [judge(Path(run)) for run in sys.argv[1:]] or before["runs"],
        "environment": environment(),
    }
    for name, side in SIDES.items():
        model = untrained(name)
        shape = (IMAGES, model.network.backbone.in_channels, side, side)
        result["models"][name] = measure(model, torch.randint(256, shape, dtype=torch.uint8))
    write_json(RESULT, result)
    head, rest = DOCS.read_text().split(START)
    write_text(DOCS, head + START + tables(result) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
