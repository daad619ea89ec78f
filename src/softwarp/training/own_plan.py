"""What of the training on own images fits into the time: measured once, and kept in choice/plan.json."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from softwarp.data.sources import Source
from softwarp.files import write_json
from softwarp.models.preparation import sizes_of
from softwarp.recipe.schema import DataPart, Recipe
from softwarp.training.budget import Pace, Plan, Workload, crops_below, fit, measure_pace, whole_looks
from softwarp.training.own_recipe import resize_for


def plan_in(
    recipe: Recipe,
    source: Source,
    work: Workload,
    file: Path,
    device: torch.device,
    given: set[str],
    budget: float | None,
    fresh: bool,
) -> Plan:
    """Return the plan; that in `file` if it answers the same question, as no two measurements agree."""
    asked = asked_of(recipe, given, budget)
    timed = {"model": recipe.model.model_dump(mode="json"), "images": work.trained}
    if file.is_file() and not fresh:
        found = json.loads(file.read_text())
        same = found.get("asked") == asked and found.get("timed", timed) == timed
        if same and "pace" in found["plan"]:  # a plan of version 0.1 has none
            pace = Pace(**found["plan"]["pace"])
            plan = Plan(**found["plan"] | {"pace": pace})
            seconds = plan.measuring + work.seconds(pace, plan.epochs)  # perhaps for more seeds
            return replace(plan, seconds=seconds)
    file.parent.mkdir(parents=True, exist_ok=True)
    plan = fit(lambda side: measure_pace(recipe.model, source, side, device, file.parent), work, **asked)
    write_json(file, {"asked": asked, "timed": timed, "plan": asdict(plan)})
    return plan


def asked_of(recipe: Recipe, given: set[str], budget: float | None) -> dict[str, Any]:
    """Return the question that a plan answers."""
    crop, epochs = recipe.data.crop, recipe.phases[0].epochs
    return {
        "crops": [crop]
        if given & {"data.crop", "data.resize"}
        else crops_below(crop, sizes_of(recipe.model.backbone).step),
        "epochs": epochs,
        "fewest": epochs if "phases.0.epochs" in given else whole_looks(epochs)[0],
        "budget": budget,
    }


def planned(recipe: Recipe, plan: Plan) -> Recipe:
    """Return the recipe with the crop and the epochs of a plan."""
    data = recipe.data if plan.crop == recipe.data.crop else cropped(recipe, plan.crop)
    phase = recipe.phases[0].model_copy(update={"epochs": plan.epochs})
    return recipe.model_copy(update={"data": data, "phases": (phase,)})


def cropped(recipe: Recipe, crop: int) -> DataPart:
    """Return the data part with another crop, and the size that suits it."""
    return recipe.data.model_copy(update={"crop": crop, "resize": resize_for(crop, recipe.model.backbone)})


def minutes(seconds: float) -> str:
    """Return a time in words.

    >>> minutes(20), minutes(610)
    ('20 seconds', '10 minutes')
    """
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def idle(asked: int) -> str:
    """Return why nothing is trained, by the number of epochs that was asked for."""
    return "there is no time to train; give a longer budget" if asked else "phases.0.epochs is 0"


def what_fits(plan: Plan, work: Workload, asked: int, *, exactly: bool) -> str:
    """Return in words what a plan allows."""
    if not plan.epochs:
        return f"{plan.crop} px, no fine-tuning: {idle(asked)}"
    where = " on each half of the training classes to choose, then on all of them" if work.choosing else ""
    epochs = (
        f"up to {plan.epochs} epochs" if exactly or not work.choosing else "epochs for as long as it pays"
    )
    return f"{plan.crop} px, {epochs}{where}"
