import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from support.pictures import jpeg, noise, truncated
from torch.utils.data import DataLoader

from softwarp.data import images
from softwarp.data.images import ImageDataset, as_batch, read_image, train_transform

RED, WHITE = (255, 0, 0), (255, 255, 255)


def close(image, colour, at=(0, 0)):
    return max(abs(a - b) for a, b in zip(image.getpixel(at), colour, strict=True)) <= 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    Image.new("RGB", (5, 4), WHITE).convert(mode).save(path)
    image = read_image(path)
    assert (image.mode, image.size, image.getpixel((4, 3))) == ("RGB", (5, 4), WHITE)


def test_cmyk_jpeg_has_its_colours(tmp_path):
    """Pillow writes and reads them inverted, with Adobe's marker."""
    path = jpeg(tmp_path / "cmyk.jpg", Image.new("RGB", (16, 16), RED).convert("CMYK"))
    assert b"Adobe" in path.read_bytes()
    assert close(read_image(path), RED)


def test_transparency_is_white(tmp_path):
    clear = Image.new("RGBA", (2, 1), (*RED, 255))
    clear.putpixel((1, 0), (0, 0, 255, 0))
    clear.save(tmp_path / "alpha.png")
    palette = Image.new("P", (2, 1))
    palette.putpalette([*RED, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=1)
    palette.save(tmp_path / "shares.png", transparency=bytes([255, 0]))
    palette.save(tmp_path / "opaque.png")
    for name in ("alpha", "palette", "shares"):
        image = read_image(tmp_path / f"{name}.png")
        assert [image.getpixel((x, 0)) for x in (0, 1)] == [RED, WHITE], name
    assert read_image(tmp_path / "opaque.png").getpixel((1, 0)) == (0, 0, 255)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    grey = np.array([[0, 256, 32768, 65535]], np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert np.asarray(read_image(tmp_path / "grey.png"))[0, :, 0].tolist() == [0, 1, 128, 255]
    Image.fromarray(np.array([[-5, 256, 70_000]], np.int32)).save(tmp_path / "wide.tif")
    assert np.asarray(read_image(tmp_path / "wide.tif"))[0, :, 0].tolist() == [0, 1, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shorter_side", [None, 10])
def test_exif_orientation_is_undone(tmp_path, orientation, shorter_side):
    """Red is at the top left once upright; where it was stored is EXIF's own definition."""
    corner = {1: (0, 0), 2: (1, 0), 3: (1, 1), 4: (0, 1), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}[
        orientation
    ]
    turned = orientation >= 5
    stored = Image.new("RGB", (64, 32) if not turned else (32, 64))
    box = tuple(side // 2 * place for side, place in zip(stored.size, corner, strict=True))
    stored.paste(RED, (*box, box[0] + stored.width // 2, box[1] + stored.height // 2))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = read_image(jpeg(tmp_path / "turned.jpg", stored, exif=exif), shorter_side=shorter_side)
    width, height = image.size
    assert (width, height) == ((64, 32) if shorter_side is None else (32, 16))
    assert close(image, RED, (2, 2))
    for at in ((width - 3, 2), (2, height - 3), (width - 3, height - 3)):
        assert close(image, (0, 0, 0), at)


def test_damaged_exif_does_not_break_whole_pixels(tmp_path):
    for name in ("exif.jpg", "exif.png"):
        Image.new("RGB", (8, 8), RED).save(tmp_path / name, exif=b"Exif\0\0nonsense of some length")
        assert close(read_image(tmp_path / name), RED)


@pytest.mark.parametrize(
    ("shorter_side", "size"), [(None, (160, 80)), (41, (160, 80)), (40, (80, 40)), (9, (20, 10))]
)
def test_a_jpeg_is_decoded_no_smaller_than_asked(tmp_path, shorter_side, size):
    path = jpeg(tmp_path / "large.jpg", noise(160, 80))
    assert read_image(path, shorter_side=shorter_side).size == size


def test_what_is_broken_is_named_with_its_cause(tmp_path, monkeypatch):
    empty, text, cut = (tmp_path / name for name in ("empty.jpg", "text.jpg", "cut.jpg"))
    empty.touch()
    text.write_text("this is no picture")
    truncated(cut)
    noise(9, 9).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-90])
    causes = {"empty.jpg": "empty", "text.jpg": "known kind", "cut.jpg": "truncated", "cut.png": "truncated"}
    for name, cause in causes.items():
        with pytest.raises(ValueError, match=f"{name}: .*{cause}"):
            read_image(tmp_path / name)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    noise(9, 9).save(tmp_path / "bomb.png")
    with pytest.raises(ValueError, match=r"bomb\.png: .*decompression bomb"):
        read_image(tmp_path / "bomb.png")


def test_errors_of_the_system_pass_as_they_are(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "missing.jpg")
    with pytest.raises(IsADirectoryError):
        read_image(tmp_path)

    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr(Image, "open", exhausted)
    with pytest.raises(MemoryError):  # it says nothing about the image
        read_image(tmp_path / "image.jpg")


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


def test_what_cannot_be_is_answered_with_what_can():
    with pytest.raises(ValueError, match=r"'random_resize_crop'; did you mean random_resized_crop\?"):
        train_transform("random_resize_crop", resize=8, crop=8)
    with pytest.raises(ValueError, match="crop is 9 but images are resized to 8"):
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
    return ImageDataset(*folder, transform, shorter_side=None, **settings)


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
    with pytest.raises(ValueError, match=r"no image of the class of .*b/1\.jpg can be decoded"):
        dataset(folder).__getitems__([(5, 0)])
    (root / paths[0]).unlink()
    with pytest.raises(FileNotFoundError):
        dataset(folder).__getitems__([(0, 0)])


def test_paths_and_labels_must_match(folder):
    root, paths, labels = folder
    with pytest.raises(ValueError, match="8 paths but 7 labels"):
        dataset((root, paths, labels[:7]))
