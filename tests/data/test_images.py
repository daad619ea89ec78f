import numpy as np
import pytest
import torch
from PIL import Image
from support.pictures import jpeg, noise, truncated
from torch.utils.data import DataLoader

from softwarp.data import images
from softwarp.data.images import ImageDataset, as_batch, train_transform
from softwarp.data.stores import FileStore

RED = (255, 0, 0)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (2, 500), (31, 33), (200, 90)])
def test_transforms_give_bytes_of_one_shape(size):
    image = noise(*size)
    transforms = [train_transform(name, resize=32, crop=28) for name in images.TRAIN_TRANSFORMS]
    for transform in [*transforms, images.test_transform(resize=32, crop=28)]:
        result = transform(image)
        assert (result.dtype, result.shape) == (torch.uint8, (3, 28, 28))


def test_a_thin_image_is_not_enlarged_whole(monkeypatch):
    """1 x 100000 resized to 256 would be 19 GB."""
    seen = []

    def resize(*_, **__):
        return lambda image: seen.append(tuple(image.shape)) or torch.zeros(3, 256, 256)

    monkeypatch.setattr(images.v2, "Resize", resize)
    images.test_transform(resize=256, crop=224)(Image.new("RGB", (100_000, 1)))
    assert seen == [(3, 1, 16)]
    wide = torch.arange(100).expand(3, 2, 100)
    assert images.slimmed(wide)[0, 0].tolist() == list(range(34, 66))  # the centre
    assert torch.equal(images.slimmed(wide.mT).mT, images.slimmed(wide))


@pytest.mark.parametrize("name", images.TRAIN_TRANSFORMS)
def test_fine_stripes_become_grey(name):
    """Two rows of eight are white: those that a resize to an eighth would look at without antialiasing."""
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[3::8] = stripes[4::8] = 255
    how = train_transform(name, resize=8, crop=8, scale=(1.0, 1.0))
    for transform in (how, images.test_transform(resize=8, crop=8)):
        assert transform(Image.fromarray(stripes)).max() < 150


def test_the_test_transform_keeps_the_centre():
    image = Image.new("RGB", (80, 40))
    image.paste(RED, (30, 10, 50, 30))
    result = images.test_transform(resize=20, crop=8)(image)
    assert result[0].min() == 255
    assert result[1:].max() == 0


def test_images_are_resized_as_asked():
    image = noise(60, 40)
    for name, how in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        for mode, size in (("center", (30, 20)), ("squash", (20, 20))):
            found = images.test_transform(resize=20, crop=20, interpolation=name, crop_mode=mode)(image)
            resized = np.asarray(image.resize(size, how))[:, (size[0] - 20) // 2 :][:, :20].astype(int)
            difference = np.abs(found.permute(1, 2, 0).numpy() - resized)
            assert difference.max() <= 1, (name, mode)
            plain = train_transform("none", resize=20, crop=20, interpolation=name, crop_mode=mode)
            assert torch.equal(plain(image), found)


def test_random_crops_are_resized_as_asked():
    found = []
    for name in images.INTERPOLATIONS:
        torch.manual_seed(0)
        found.append(
            train_transform("random_resized_crop", resize=20, crop=20, interpolation=name)(noise(60, 40))
        )
    assert not torch.equal(*found)


def test_training_transforms_do_what_their_names_say():
    """A wide gradient: resize_random_crop always sees 8 of its 32 columns, random_resized_crop any share."""
    ramp = np.broadcast_to(np.linspace(0, 255, 320, dtype=np.uint8)[None, :, None], (80, 320, 3))
    image = Image.fromarray(np.ascontiguousarray(ramp))

    def spans(name):
        transform = train_transform(name, resize=8, crop=8, scale=(0.01, 1.0))
        rows = [transform(image)[0, 4].int() for _ in range(40)]
        return [int(row[-1] - row[0]) for row in rows]

    torch.manual_seed(0)
    fixed, free = spans("resize_random_crop"), spans("random_resized_crop")
    assert {abs(span) for span in fixed} <= set(range(52, 60))
    assert max(map(abs, free)) - min(map(abs, free)) > 20
    places = [train_transform("resize_random_crop", resize=8, crop=8)(image).min() for _ in range(9)]
    assert max(places) - min(places) > 50
    small = train_transform("random_resized_crop", resize=8, crop=8, scale=(0.01, 0.02))
    cuts = [small(image).int() for _ in range(9)]
    assert max(cut.max() - cut.min() for cut in cuts) < 30  # 0.02 of the area is a tenth of the width
    for spans_seen in (fixed, free):
        assert min(spans_seen) < 0 < max(spans_seen)  # both ways round


def test_without_augmentation_training_sees_what_evaluation_sees():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))
    plain = train_transform("none", resize=20, crop=16)
    expected = images.test_transform(resize=20, crop=16)(picture)
    assert all(torch.equal(plain(picture), expected) for _ in range(9))


@pytest.mark.parametrize("name", images.TRAIN_TRANSFORMS)
def test_colours_jitter_and_rectangles_are_erased_where_asked(name):
    image = Image.new("RGB", (40, 40), RED)
    torch.manual_seed(0)

    def draw(**settings):
        transform = train_transform(name, resize=20, crop=16, **settings)
        return torch.stack([transform(image) for _ in range(40)])

    assert (draw() == torch.tensor(RED).view(3, 1, 1)).all()
    jittered = draw(color_jitter=(0.3, 0.0, 0.0, 0.0))
    assert (jittered.amax((2, 3)) == jittered.amin((2, 3))).all()  # one colour per image
    assert 170 <= int(jittered[:, 0].min()) < 220
    erased = (draw(erase=0.5) == torch.tensor(images.GREY).view(3, 1, 1)).all(1).float().mean((1, 2))
    assert 10 <= int((erased > 0).sum()) <= 30  # about half of the images
    assert erased[erased > 0].min() > 0.005
    assert erased.max() < 0.45


def test_what_cannot_be_is_answered_with_what_can():
    with pytest.raises(ValueError, match=r"'random_resize_crop'.*random_resized_crop"):
        train_transform("random_resize_crop", resize=8, crop=8)
    with pytest.raises(ValueError, match=r"crop of 9 .*8"):
        images.test_transform(resize=8, crop=9)


@pytest.fixture
def folder(tmp_path):
    """Two classes of four images, in turns: items 0, 2, 4, 6 and 1, 3, 5, 7."""
    paths = [f"{'ab'[i % 2]}/{i}.jpg" for i in range(8)]
    for i, path in enumerate(paths):
        jpeg(tmp_path / path, noise(40 + i, 30, seed=i))
    return tmp_path, paths, torch.arange(8) % 2


def dataset(folder, **settings):
    transform = train_transform("random_resized_crop", resize=16, crop=12)
    root, paths, labels = folder
    return ImageDataset(FileStore(root, paths, shorter_side=None), labels, transform, **settings)


DRAWS = [(0, 5), (3, 6), (0, 7), (7, 8), (2, 9), (5, 10)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_draw_depends_on_its_seed_alone(folder):
    def by_draw(batches, workers):
        loader = DataLoader(dataset(folder), batch_sampler=batches, collate_fn=as_batch, num_workers=workers)
        flat = [draw for batch in batches for draw in batch]
        return dict(zip(flat, torch.cat([batch.images for batch in loader]), strict=True))

    expected = by_draw([DRAWS], 0)
    torch.manual_seed(99)
    for result in (by_draw([DRAWS[4:], DRAWS[:4]], 2), by_draw([DRAWS[::-1][:1], DRAWS[:5]], 0)):
        assert all(torch.equal(result[draw], expected[draw]) for draw in DRAWS)
    assert not torch.equal(expected[0, 5], expected[0, 7])


def test_the_callers_chance_is_left_alone(folder):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    batch = dataset(folder).__getitems__(DRAWS)
    assert torch.equal(torch.rand(2), expected)
    assert batch.images.shape == (6, 3, 12, 12)
    assert batch.items.tolist() == [0, 3, 0, 7, 2, 5]
    assert batch.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert batch.broken == []


def test_the_next_whole_image_of_the_class_takes_the_place(folder):
    root, paths, _ = folder
    truncated(root / paths[4])
    (root / paths[6]).write_text("")
    batch = dataset(folder).__getitems__([(4, 1), (1, 2), (6, 3), (2, 4)])
    assert batch.items.tolist() == [0, 1, 0, 2]
    assert batch.labels.tolist() == [0, 1, 0, 0]
    assert batch.broken == [paths[4], paths[6]]
    assert torch.equal(batch.images[0], dataset(folder).__getitems__([(0, 1)]).images[0])
    truncated(root / paths[1])
    assert dataset(folder).__getitems__([(1, 2)]).items.tolist() == [3]
    truncated(root / paths[3])
    batch = dataset(folder).__getitems__([(1, 2)])
    assert (batch.items.tolist(), batch.broken) == ([5], [paths[1], paths[3]])
    truncated(root / paths[5])
    jpeg(root / paths[1], noise(40, 30))
    assert dataset(folder).__getitems__([(3, 2)]).items.tolist() == [7]  # the next, not the first


def test_without_replacing_broken_images_are_left_out(folder):
    root, paths, _ = folder
    truncated(root / paths[4])
    batch = dataset(folder, replace=False).__getitems__([(3, 1), (4, 2), (5, 3)])
    assert (batch.items.tolist(), batch.labels.tolist(), batch.broken) == ([3, 5], [1, 1], [paths[4]])
    assert batch.images.shape == (2, 3, 12, 12)
    nothing = dataset(folder, replace=False).__getitems__([(4, 2)])
    assert (nothing.images.shape, nothing.items.shape, nothing.labels.shape) == ((0, 3, 12, 12), (0,), (0,))


def test_strict_raises_and_so_does_a_class_with_nothing_whole(folder):
    root, paths, _ = folder
    for item in (1, 3, 5, 7):
        truncated(root / paths[item])
    with pytest.raises(ValueError, match=r"5\.jpg: .*truncated"):
        dataset(folder, strict=True).__getitems__([(5, 0)])
    with pytest.raises(ValueError, match=r"class of .*b/1\.jpg"):
        dataset(folder).__getitems__([(5, 0)])
    (root / paths[0]).unlink()
    with pytest.raises(ValueError, match=r"0\.jpg: the file is missing"):
        dataset(folder, strict=True).__getitems__([(0, 0)])
    batch = dataset(folder).__getitems__([(0, 0)])
    assert (batch.items.tolist(), batch.broken) == ([2], [paths[0]])


def test_paths_and_labels_must_match(folder):
    root, paths, labels = folder
    with pytest.raises(ValueError, match="8 images but 7 labels"):
        dataset((root, paths, labels[:7]))
