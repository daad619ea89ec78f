"""Every corruption does what its line says, more of it with each severity, and always in the same way."""

import numpy as np
import pytest
import torch

from softwarp.data.corruptions import CORRUPTIONS, SEVERITIES, Corrupted, corrupt
from softwarp.data.images import ImageDataset
from softwarp.data.stores import MemoryStore

SIDE = 96


@pytest.fixture(scope="module")
def photograph():
    """Coloured waves: smooth, so that every change shows."""
    x = torch.linspace(0, 6, SIDE)
    waves = torch.stack([torch.sin(x[:, None] + k * x) for k in (1, 2, 3)])
    return (waves * 80 + 128).to(torch.uint8)


def changed_share(image, other):
    return float((image != other).any(0).double().mean())


def difference(image, other):
    return float((image.double() - other.double()).abs().mean())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_more_with_each_severity_and_always_the_same(photograph, name):
    seen = [corrupt(photograph, name, severity, item=3) for severity in SEVERITIES]
    assert all(each.shape == photograph.shape and each.dtype == torch.uint8 for each in seen)
    sizes = [difference(photograph, each) for each in seen]
    assert min(sizes) > 0
    if name != "jigsaw":  # more and smaller cells: neighbours are more alike
        assert sizes == sorted(set(sizes))
    assert all(
        torch.equal(each, corrupt(photograph, name, s, item=3))
        for s, each in zip(SEVERITIES, seen, strict=True)
    )


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "defocus blur"])
def test_items_and_seeds_are_corrupted_differently(photograph, name):
    made = [corrupt(photograph, name, 4, item=item, seed=seed) for item in range(8) for seed in (0, 1)]
    assert len({tuple(each.flatten().tolist()) for each in made}) > 1


def test_noise_is_as_strong_as_said_and_grey():
    flat = torch.full((3, 400, 400), 128, dtype=torch.uint8)
    for severity in SEVERITIES:
        noisy = corrupt(flat, "gaussian", severity).double() - 128
        assert float(noisy[0].std()) == pytest.approx(3 * severity, rel=0.02)
        assert torch.equal(noisy[0], noisy[2])
        even = corrupt(flat, "uniform", severity).double() - 128
        assert float(even.abs().max()) == 4 * severity
        assert float(even[0].std()) == pytest.approx(8 * severity / np.sqrt(12), rel=0.03)


@pytest.mark.parametrize(("name", "share"), [("salt and pepper", 0.006), ("dropout", 0.01)])
def test_the_share_of_pixels_that_are_hit(name, share):
    flat = torch.full((3, 500, 500), 101, dtype=torch.uint8)
    for severity in SEVERITIES:
        hit = corrupt(flat, name, severity)
        assert changed_share(flat, hit) == pytest.approx(share * severity, rel=0.1)
        if name == "dropout":
            assert set(hit.unique().tolist()) == {0, 101}


def test_cutout_is_a_grey_square_of_the_size_said():
    black = torch.zeros(3, 100, 100, dtype=torch.uint8)
    for severity, side in zip(SEVERITIES, (10, 15, 20, 30, 40), strict=True):
        largest = max(
            int((corrupt(black, "cutout", severity, item=item)[0] == 128).sum()) for item in range(30)
        )
        assert largest == pytest.approx(side**2, rel=0.15)


def test_shear_moves_rows_and_keeps_columns_upright():
    column = torch.zeros(1, 101, 101, dtype=torch.uint8)
    column[:, :, 50] = 255
    sheared = corrupt(column, "affine shear", 5)[0].double()
    places = (sheared * torch.arange(101)).sum(1) / sheared.sum(1).clamp_min(1)
    slope = float(places[90] - places[10]) / 80
    assert abs(slope) == pytest.approx(np.tan(np.radians(30)), rel=0.03)


def test_jigsaw_only_moves_cells(photograph):
    shuffled = corrupt(photograph, "jigsaw", 3)  # 6 x 6 cells of 16 pixels
    cells = {
        tuple(photograph[:, y : y + 16, x : x + 16].flatten().tolist())
        for y in range(0, 96, 16)
        for x in range(0, 96, 16)
    }
    moved = {
        tuple(shuffled[:, y : y + 16, x : x + 16].flatten().tolist())
        for y in range(0, 96, 16)
        for x in range(0, 96, 16)
    }
    assert cells == moved
    assert not torch.equal(photograph, shuffled)


def test_hue_and_saturation_leave_grey_and_brightness_alone(photograph):
    grey = photograph[:1].expand(3, -1, -1).contiguous()
    assert torch.equal(corrupt(grey, "hue and saturation", 5), grey)
    turned = corrupt(photograph, "hue and saturation", 5)
    assert difference(photograph.amax(0), turned.amax(0)) < 2
    red = torch.zeros(3, 4, 4, dtype=torch.uint8)
    red[0], red[1:] = 200, 100
    made = [corrupt(red, "hue and saturation", 5, item=item)[:, 0, 0] for item in range(40)]
    saturations = {round(float((each.max() - each.min()) / each.max()), 1) for each in made}
    assert saturations == {0.3, 0.7}  # 0.5 -+ 40/255


def test_blur_keeps_flat_images_and_widens_a_point():
    flat = torch.full((3, 64, 64), 77, dtype=torch.uint8)
    assert torch.equal(corrupt(flat, "defocus blur", 5), flat)
    point = torch.zeros(1, 224, 224, dtype=torch.uint8)
    point[0, 110:115, 110:115] = 255
    blurred = corrupt(point, "defocus blur", 5)[0]
    rows = (blurred.amax(1) > 0).nonzero().flatten()
    assert int(rows[-1] - rows[0]) == pytest.approx(2 * 10 + 4, abs=2)


def test_a_corrupted_data_set_does_not_depend_on_batches(photograph):
    store = MemoryStore(torch.stack([photograph] * 4), list("abcd"))
    images = ImageDataset(store, torch.arange(4), lambda image: image)
    noisy = Corrupted(images, "gaussian", 3)
    whole = noisy.__getitems__([(item, 0) for item in range(4)])
    alone = noisy.__getitems__([(2, 0)])
    assert torch.equal(whole.images[2], alone.images[0])
    assert not torch.equal(whole.images[1], whole.images[2])
    assert len(noisy) == 4
    assert noisy.paths_without(torch.tensor([0, 1, 3])) == ["c"]
