"""What `loss.name=X` on the command line takes from the recipe, and what it takes from X's card."""

import re
from typing import Any

from softwarp.losses import card_of
from softwarp.losses.contract import Training
from softwarp.losses.own_file import whole_name
from softwarp.recipe.overrides import change_loss
from softwarp.recipe.schema import parse_recipe

LARGE_EPS = 0.1  # an optimizer's eps that makes Adam nearly SGD with momentum, with large learning rates


def explain_change(settings: dict[str, Any], name: str) -> list[str]:
    """Return a line on what the recipe keeps when it gets this loss, and what comes from the loss's card.

    A second line warns of an optimizer eps that the loss was not published with. There are no lines for a
    recipe that already has this loss.
    """
    card, recipe = card_of(name), parse_recipe(change_loss(settings, name))
    if whole_name(settings["loss"]["name"]) == whole_name(name):
        return []
    batches, optimizer = recipe.batches, recipe.optimizer
    size = f"{batches.size} images" if batches.size else f"{batches.classes} x {batches.samples}"
    eps = "" if optimizer.name == "sgd" else f" with eps {optimizer.eps:g}"
    lines = [
        f"from the recipe: data, model, epochs, the model's rates, {optimizer.name}{eps}, batches of {size}; "
        f"from `softwarp losses {name}`: its settings, {card.proxy_rate_ratio:g} times the head's rate for "
        "its own parameters (our default). "
        f"How it was trained ({card.training.by}): {str(card.training).partition(' (')[0]}"
    ]
    if eps and optimizer.eps >= LARGE_EPS > published_eps(card.training):
        lines.append(
            f"optimizer.eps {optimizer.eps:g} suits few losses, and {name} was not trained with it: "
            "set optimizer.eps=1e-8 and lower the learning rates"
        )
    return lines


def published_eps(training: Training) -> float:
    """Return the optimizer eps that a card mentions, 0 if it mentions none.

    >>> published_eps(card_of("proxy_nca_pp").training)
    1.0
    """
    said = re.search(r"\beps (\d+(\.\d+)?)", training.details)
    return float(said[1]) if said else 0.0
