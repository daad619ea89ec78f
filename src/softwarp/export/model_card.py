"""The model card of a run: README.md of a folder in Hugging Face form."""

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader

from softwarp.losses.own_file import is_own, loss_label
from softwarp.losses.registry import card_of
from softwarp.losses.warped_softmax import PAPER
from softwarp.recipe.overrides import write_out
from softwarp.recipe.schema import Recipe
from softwarp.runs.model_folder import ModelConfig
from softwarp.runs.result import Result
from softwarp.runs.run import Run
from softwarp.tables import figure, metric_of, metric_title

# The name of a data set, and what it is; a folder of one's own stays unnamed, for its name is a path.
DATA = {
    "glyphs": ("glyphs", "characters drawn in 12 styles from the fonts that ship with matplotlib"),
    "cub": ("CUB-200-2011", "photographs of 200 kinds of birds"),
    "cars": ("Cars196", "photographs of 196 models of cars"),
    "sop": ("Stanford Online Products", "photographs of products for sale"),
    "inshop": ("In-Shop Clothes Retrieval", "photographs of clothes from DeepFashion"),
}
ALL_OTHERS = "each searches all others, never itself"
OWN = ("own images", "labelled by whoever trained the model")


def model_card(run: Run, config: ModelConfig, *, licence: str | None) -> str:
    """Return the card as Markdown with YAML in front; it names no path of this machine.

    Args:
        licence: of the weights, in the hub's spelling, like mit; None if nobody has chosen one.
    """
    recipe, result = run.recipe(), run.result()
    measured = result.measured
    page = Environment(loader=PackageLoader("softwarp.export"), trim_blocks=True, lstrip_blocks=True)
    title, citation = _loss_of(recipe)
    gallery = measured.closed or run.items(gallery=True)
    searched = "queries search the gallery" if gallery else ALL_OTHERS
    return page.get_template("model_card.md.jinja").render(
        front=_front(recipe, result, licence).to_yaml(),
        config=config,
        result=result,
        measured=measured,
        recipe=recipe,
        settings=yaml.safe_dump(public_settings(recipe), sort_keys=False, allow_unicode=True).strip(),
        data=DATA.get(recipe.data.name, OWN),
        searched=searched,
        title=title if result.epochs else result.title.capitalize(),
        citations=list(dict.fromkeys((*citation, PAPER))) if result.epochs else [PAPER],
        metrics=[
            (metric_title(name), figure(name, value), _baseline(measured, name))
            for name, value in measured.metrics.items()
            if metric_of(name).unit != "count"
        ],
        licence=licence,
        weights=run.weights(),
    )


def _loss_of(recipe: Recipe) -> tuple[str, list[str]]:
    """The loss's title and citation; of one's own, whose file is not run for that, its label alone."""
    if is_own(recipe.loss.name):
        return loss_label(recipe.loss.name), []
    card = card_of(recipe.loss.name)
    return card.title, [card.citation]


def public_settings(recipe: Recipe) -> dict[str, Any]:
    """Return all settings of a recipe without where data and weights are on this machine."""
    settings = write_out(recipe)
    settings["loss"]["name"] = recipe.loss.name.rpartition("/")[2]  # the file of one's own loss
    settings["data"].pop("root")
    settings["data"].pop("workers")
    if isinstance(settings["model"]["pretrained"], str):
        settings["model"]["pretrained"] = Path(settings["model"]["pretrained"]).name
    return settings


def _front(recipe: Recipe, result: Result, licence: str | None) -> ModelCardData:
    """Return what the hub indexes: licence, tags, and the metrics as results of an evaluation."""
    made_by, other = result.title.replace(" ", "-"), " (of the held-out model)" if result.caveat else ""
    return ModelCardData(
        license=licence,
        library_name="softwarp",
        pipeline_tag="image-feature-extraction",
        tags=["metric-learning", "image-retrieval", made_by, recipe.model.backbone],
        model_name=f"{made_by}-{recipe.data.name}",
        eval_results=[
            EvalResult(
                task_type="image-feature-extraction",
                task_name="Image retrieval",
                dataset_type=recipe.data.name,
                dataset_name=DATA.get(recipe.data.name, OWN)[0],
                dataset_split=result.split,
                metric_type=name,
                metric_name=metric_title(name) + other,
                metric_value=round(value, 4),
            )
            for name, value in result.measured.metrics.items()
            if name.startswith("recall@") or name == "map@r"
        ],
    )


def _baseline(result: Result, name: str) -> str:
    value = (result.baseline or {}).get(name)
    return "" if value is None else figure(name, value)
