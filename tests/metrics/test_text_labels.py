"""Labels may be text wherever they are classes: names mean the same for queries and gallery."""

import numpy as np
import pytest
import torch

from softwarp.evaluation import measure
from softwarp.metrics import (
    average_distance_to_proxy,
    bootstrap_over_classes,
    clustering_metrics,
    geometry_metrics,
    identification_metrics,
    retrieval_metrics,
    retrieval_per_query,
)

NAMES = ["wren", "gull", "é", "owl"]
NUMBERS = np.random.default_rng(0).integers(0, 4, 24)
POINTS = np.random.default_rng(1).normal(size=(24, 3)) + 3 * np.eye(4, 3)[NUMBERS]
FORMS = {
    "list": lambda names: list(names),
    "array": lambda names: np.array(names),
    "objects": lambda names: np.array(names, object),
    "bytes": lambda names: np.array([name.encode() for name in names]),
}
TEXT = [NAMES[number] for number in NUMBERS]


@pytest.mark.parametrize("form", FORMS)
def test_text_gives_the_figures_of_numbers(form):
    text = FORMS[form](TEXT)
    assert retrieval_metrics(POINTS, text) == retrieval_metrics(POINTS, NUMBERS)
    assert clustering_metrics(POINTS, text) == pytest.approx(clustering_metrics(POINTS, NUMBERS))
    assert geometry_metrics(POINTS, text) == pytest.approx(geometry_metrics(POINTS, NUMBERS))
    families = ("retrieval", "clustering", "geometry")
    named, numbered = (measure(POINTS, labels, families=families, bootstrap=9) for labels in (text, NUMBERS))
    assert named["metrics"] == pytest.approx(numbered["metrics"])
    assert named["classes"] == numbered["classes"] == 4
    values = retrieval_per_query(POINTS, text, ks=(1,))["recall@1"]
    assert bootstrap_over_classes(values, text)[0] <= values.mean()


@pytest.mark.parametrize("form", FORMS)
def test_queries_and_gallery_are_matched_by_text(form):
    """The gallery lacks the first class by name, so that numbers counted on each side would differ."""
    there = np.array([name != "gull" for name in TEXT])
    asked, known = FORMS[form](TEXT), FORMS[form](list(np.array(TEXT)[there]))
    sides = {"gallery": POINTS[there] + 0.1, "gallery_labels": NUMBERS[there]}
    expected = retrieval_metrics(POINTS, NUMBERS, **sides)
    assert retrieval_metrics(POINTS, asked, **sides | {"gallery_labels": known}) == expected
    assert measure(POINTS, asked, **sides | {"gallery_labels": known})["metrics"] == expected
    found = identification_metrics(POINTS, asked, POINTS[there], known, ranks=(1,))
    assert found == identification_metrics(POINTS, NUMBERS, POINTS[there], NUMBERS[there], ranks=(1,))


def test_text_on_one_side_and_numbers_on_the_other_are_refused():
    sides = {"gallery": POINTS, "gallery_labels": NUMBERS}
    for ask in (retrieval_metrics, measure):
        with pytest.raises(ValueError, match=r"text.*numbers"):
            ask(POINTS, TEXT, **sides)
    with pytest.raises(ValueError, match=r"text.*numbers"):
        identification_metrics(POINTS, NUMBERS, POINTS, TEXT)


def test_text_is_no_row_of_proxies():
    with pytest.raises(ValueError, match=r"labels must be whole numbers.*text"):
        average_distance_to_proxy(POINTS, TEXT, POINTS[:4])


def test_lists_of_numbers_and_wrong_lengths():
    assert retrieval_metrics(POINTS, NUMBERS.tolist()) == retrieval_metrics(POINTS, torch.from_numpy(NUMBERS))
    with pytest.raises(ValueError, match=r"24 rows.*\[23\]"):
        retrieval_metrics(POINTS, TEXT[1:])
