import pytest
import torch
from PIL import Image
from support.pictures import jpeg, noise, truncated

from softwarp.data.images import ImageDataset
from softwarp.data.stores import FileStore, MemoryStore


def test_files_are_read_from_their_root_and_named_without_it(tmp_path):
    jpeg(tmp_path / "a" / "whole.jpg", noise(80, 40))
    truncated(tmp_path / "a" / "cut.jpg")
    store = FileStore(tmp_path, ["a/whole.jpg", "a/cut.jpg"], shorter_side=20)
    assert len(store) == 2
    assert [store.name(item) for item in (0, 1)] == ["a/whole.jpg", "a/cut.jpg"]
    assert store.read(0).size == (40, 20)
    with pytest.raises(ValueError, match=r"a/cut\.jpg: .*truncated"):
        store.read(1)


def test_memory_gives_its_own_pixels():
    pixels = torch.arange(24, dtype=torch.uint8).reshape(3, 2, 2, 2)
    store = MemoryStore(pixels, ["x", "y", "z"])
    assert (len(store), store.name(2)) == (3, "z")
    assert torch.equal(store.read(1), pixels[1])
    with pytest.raises(ValueError, match="3 images but 2 names"):
        MemoryStore(pixels, ["x", "y"])


class Records:
    """A store of somebody else: images in one file of records."""

    def __init__(self, colours):
        self.colours = colours

    def __len__(self):
        return len(self.colours)

    def read(self, item):
        if self.colours[item] is None:
            raise ValueError(f"record {item}: no image")
        return Image.new("RGB", (4, 4), self.colours[item])

    def name(self, item):
        return f"record {item}"


def test_a_data_set_takes_any_store():
    images = ImageDataset(
        Records(["red", None, "blue"]),
        torch.tensor([0, 0, 1]),
        lambda image: torch.tensor(image.getpixel((0, 0))),
    )
    batch = images.__getitems__([(1, 0), (2, 0)])
    assert batch.images.tolist() == [[255, 0, 0], [0, 0, 255]]
    assert (batch.items.tolist(), batch.broken) == ([0, 2], ["record 1"])
    assert images.paths_without(torch.tensor([0])) == ["record 1", "record 2"]
