"""Which dropout costs as much Recall@1 as that of the paper's Table 4?

    python experiments/dropout_strength.py CUB_200_2011    -> results/dropout_strength.json

Frozen features of EfficientNet-Lite0, without training, on the validation classes of the recipe cub_lite.
"""

from pathlib import Path
from typing import Annotated

import typer

from softwarp.data.sources import load_source
from softwarp.files import write_json
from softwarp.inference import load
from softwarp.memory import freed_memory_kept
from softwarp.recipe.files import find_recipe, read_recipe
from softwarp.runs.run import environment
from softwarp.studies.noise import retrieval_of
from softwarp.studies.published import TABLE_4, TABLE_4_LOSSES

PERCENT = (0, 5, 10, 15, 20, 25, 30, 35, 40)
RESULT = Path("results/dropout_strength.json")


def main(root: Annotated[Path, typer.Argument(help="Folder of CUB-200-2011.")]) -> None:
    """Measure Recall@1 of frozen features by the share of pixels that are dropped."""
    recipe = read_recipe(find_recipe("cub_lite"))
    data = recipe.data.model_copy(update={"root": str(root)})
    with freed_memory_kept():
        source = load_source(data, recipe.evaluation.plan())
        model = load("efficientnet_lite0")
        found = {
            percent: retrieval_of(model, source, "dropout", percent, 0)["recall@1"] for percent in PERCENT
        }
    content = {
        "command": f"python experiments/dropout_strength.py {root.name}",
        "images": len(source.query_labels),
        "rows": [{"percent": percent, "recall@1": value} for percent, value in found.items()],
        "kept": {percent: value / found[0] for percent, value in found.items()},
        "kept_in_the_paper": kept_in_the_paper(),
        "environment": environment(),
    }
    write_json(RESULT, content)


def kept_in_the_paper() -> dict[str, float]:
    """Return the share of Recall@1 that each loss of Table 4 keeps under dropout.

    >>> {name: round(share, 2) for name, share in kept_in_the_paper().items()}
    {'hist': 0.38, 'proxy_nca_pp': 0.34, 'euclidean_softmax': 0.39, 'warped_softmax': 0.4}
    """
    pairs = zip(TABLE_4["dropout"], TABLE_4["uncorrupted"], strict=True)
    return {name: dropped / clean for name, (dropped, clean) in zip(TABLE_4_LOSSES, pairs, strict=True)}


if __name__ == "__main__":
    typer.run(main)
