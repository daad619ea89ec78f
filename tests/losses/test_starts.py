"""Where class vectors start: as in the code of their authors, for that decides how fast SGD turns them."""

import pytest
import torch
from torch.nn.functional import normalize

from softwarp.losses import LOSSES, build_loss
from softwarp.losses.contract import class_vectors_of

CLASSES, SIZE = 300, 200

# Deviation of an entry, and bound of its size where there is one.
DRAWN = {
    "arcface": (0.01, None),  # insightface, partial_fc_v2.py: torch.normal(0, 0.01, ...)
    "cosface": (0.01, None),  # the same
    "normalized_softmax": (1 / (3 * SIZE) ** 0.5, 1 / SIZE**0.5),  # its authors: that of nn.Linear
    "large_margin_softmax": ((2 / SIZE) ** 0.5, None),  # its paper: He's
    "sphereface": (1 / SIZE**0.5, None),  # its authors: Caffe's xavier, variance 1 / fan in
    "magface": (1 / SIZE**0.5, None),  # its authors: uniform directions of length 1
    "proxy_anchor": ((2 / CLASSES) ** 0.5, None),  # its authors: kaiming normal, fan out
    "soft_triple": (1 / (30 * CLASSES) ** 0.5, 1 / (10 * CLASSES) ** 0.5),  # its authors: kaiming uniform
}


@pytest.mark.parametrize("name", DRAWN)
def test_class_vectors_start_as_in_the_code_of_their_authors(name):
    torch.manual_seed(0)
    vectors = class_vectors_of(build_loss(name, CLASSES, SIZE)).detach()
    deviation, bound = DRAWN[name]
    assert float(vectors.std()) == pytest.approx(deviation, rel=0.03)
    assert float(vectors.mean()) == pytest.approx(0, abs=0.05 * deviation)
    assert bound is None or float(vectors.abs().max()) == pytest.approx(bound, rel=0.001)


def test_no_loss_leaves_its_class_vectors_to_a_library_unseen():
    built = {name: build_loss(name, CLASSES, SIZE) for name, each in LOSSES.items() if each.class_vectors}
    assert {name for name, loss in built.items() if hasattr(loss, "pml")} == set(DRAWN) - {"magface"}


@pytest.mark.parametrize("name", ["sphereface", "magface"])
def test_unit_vectors_have_length_one_and_no_preferred_direction(name):
    torch.manual_seed(0)
    vectors = class_vectors_of(build_loss(name, CLASSES, SIZE)).detach()
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(CLASSES))
    assert vectors.mean(0).norm() < 0.1


def turned(name, **settings):
    """The median angle in degrees that class vectors turn by on fixed clusters under insightface's SGD, and
    the last loss."""
    torch.manual_seed(0)
    loss = build_loss(name, CLASSES, SIZE, **settings)
    centres = normalize(torch.randn(CLASSES, SIZE))
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    start = normalize(loss.proxies.detach().clone())
    labels = torch.arange(CLASSES)
    for _ in range(150):
        optimizer.zero_grad()
        value = loss(centres + 0.02 * torch.randn(CLASSES, SIZE), labels)
        value.backward()
        optimizer.step()
    cosines = (start * normalize(loss.proxies.detach())).sum(1)
    return float(torch.rad2deg(torch.acos(cosines.clamp(-1, 1))).median()), float(value.detach())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("arcface", {}),
        ("cosface", {}),
        ("normalized_softmax", {"temperature": 1 / 64, "proxy_init": "insightface"}),
    ],
)
def test_sgd_turns_class_vectors_to_their_clusters(name, settings):
    """From N(0, 1), as pytorch-metric-learning draws, they hardly move and the loss stays where it was."""
    angle, value = turned(name, **settings)
    assert angle > 60
    assert value < 0.1
    stuck, still = turned(name, **settings | {"proxy_init": "normal"})
    assert stuck < 12
    assert still > 3
