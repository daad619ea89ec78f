"""Which rules each result depends on, and the line below a table whose result is older than one of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from softwarp.runs.provenance import outdated

ALWAYS = ("metrics", "recipe")
NEEDS: dict[str, tuple[str, ...]] = {  # speed and memory depend on no rule
    "automatic_cases": ("automatic", *ALWAYS),
    "automatic_warp": ("automatic", "automatic_from_means", *ALWAYS),
    "backbones_cub": ("metrics",),
    "benchmark_evaluation": (),
    "benchmark_export": (),
    "benchmark_glyphs": ("automatic", "class_vectors", *ALWAYS),
    "benchmark_loss": (),
    "benchmark_losses": (),
    "benchmark_search": (),
    "benchmark_serve": (),
    "benchmark_sharded": (),
    "benchmark_training": (),
    "demo": ("automatic", *ALWAYS),
    "dropout_strength": ("corruptions", "metrics"),
    "faces_small": ("automatic", "class_vectors", *ALWAYS),
    "frozen_features": ("metrics",),
    "losses_on_glyphs": ("automatic", "class_vectors", *ALWAYS),
    "own_crops": ("metrics",),  # of frozen features
    "own_folders": ("automatic_from_means", "own_images", *ALWAYS),
    "reality_check_glyphs": ("automatic", "class_vectors", *ALWAYS),
    "study_alpha": ALWAYS,
    "study_delta": ALWAYS,
    "study_functions": ALWAYS,
    "study_geometry": ("automatic_from_means", *ALWAYS),
    "study_landscape": (),
    "study_noise": ("automatic_from_means", "corruptions", *ALWAYS),
    "study_phases": ALWAYS,
    "study_slopes": ALWAYS,
    "study_toy": ("automatic", *ALWAYS),
}


def codes(content: Any, part: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what a result says of the code that made it; one that was made in parts says it for each part."""
    if isinstance(content, dict):
        if "code" in content and "rules" in content["code"]:
            yield part, content["code"]
        for name, each in content.items():
            yield from codes(each, part if name == "environment" else name)


def stale(name: str, content: Any) -> list[str]:
    """Return the rules that a result, or a part of it, is older than; all of them if it says nothing."""
    found = list(codes(content)) or [("", {"rules": {}})]
    return sorted({rule for part, code in found for rule in outdated(code["rules"], _needed(name, part))})


def _needed(name: str, part: str) -> tuple[str, ...]:
    if part.endswith(
        " from random"
    ):  # proxies of automatic_warp.json that start at random, not at class means
        return tuple(rule for rule in NEEDS[name] if rule != "automatic_from_means")
    return NEEDS[name]


def note(name: str, content: Any) -> str:
    """Return the line below a table that is to be made again; empty if nothing has changed since.

    >>> note("study_landscape", {})
    ''
    >>> note("demo", {"environment": {"code": {"rules": {}}}})[:60]
    '\\nMeasured before a change of automatic, metrics, recipe (CHA'
    """
    changed = stale(name, content)
    if not changed:
        return ""
    what = ", ".join(changed)
    return f"\nMeasured before a change of {what} (CHANGELOG.md); to be measured again.\n"
