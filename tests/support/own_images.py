"""Training on small images of one's own, in seconds."""

from collections.abc import Iterator

import pytest

SMALL = ("model.backbone=test_efficientnet.r160_in1k", "model.pretrained=false", "model.embedding_size=8")
QUICK = (*SMALL, "data.workers=0", "evaluation.clustering=false")


@pytest.fixture(scope="module", autouse=True)
def small_crops() -> Iterator[None]:
    """In a module that imports it: small images stay small. Enlarged they would take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softwarp.training.own_recipe.LEAST_CROP", 32)
        yield
