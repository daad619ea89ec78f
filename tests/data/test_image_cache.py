import errno
import os
import pickle
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.pictures import jpeg, noise, truncated
from torch.utils.data import DataLoader

from softwarp.data import image_cache, images
from softwarp.data.decode import read_image
from softwarp.data.image_cache import ImageCache
from softwarp.data.images import ImageDataset, as_batch
from softwarp.data.stores import FileStore

SIDE = 24


@pytest.fixture
def folder(tmp_path):
    """A wide, a tall, a small, a broken and a single-pixel image."""
    root = tmp_path / "images"
    jpeg(root / "wide.jpg", noise(90, 50))
    jpeg(root / "tall.jpg", noise(31, 200))
    jpeg(root / "small.jpg", noise(20, 22))
    truncated(root / "broken.jpg")
    Image.new("RGB", (1, 1), (9, 8, 7)).save(root / "pixel.png")
    return root, ["wide.jpg", "tall.jpg", "small.jpg", "broken.jpg", "pixel.png"]


def opened(source, tmp_path, **settings):
    settings = {"shorter_side": SIDE, "folder": tmp_path / "cache", "workers": 2} | settings
    return ImageCache.open(*source, **settings)


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def test_the_cache_equals_direct_decoding(folder, tmp_path):
    root, paths = folder
    cache = opened(folder, tmp_path)
    assert len(cache) == 5
    assert [tuple(cache.read(i).shape) for i in (0, 1, 2, 4)] == [
        (3, 24, 43),
        (3, 154, 24),
        (3, 22, 20),
        (3, 1, 1),
    ]
    assert cache.read(4).flatten().tolist() == [9, 8, 7]
    transform = images.test_transform(resize=SIDE, crop=SIDE)
    for item in (0, 1, 2, 4):
        assert cache.read(item).dtype == torch.uint8
        assert torch.equal(
            transform(cache.read(item)), transform(read_image(root / paths[item], shorter_side=SIDE))
        )
    Image.new("RGB", (1000, 1)).save(root / "thin.png")
    assert opened((root, ["thin.png"]), tmp_path).read(0).shape == (3, 1, 16)


def test_a_cache_is_of_one_interpolation(folder, tmp_path):
    root, paths = folder
    caches = {name: opened(folder, tmp_path, interpolation=name) for name in ("bilinear", "bicubic")}
    assert opened(folder, tmp_path).pixels == caches["bilinear"].pixels != caches["bicubic"].pixels
    transform = images.test_transform(resize=SIDE, crop=SIDE, interpolation="bicubic")
    direct = transform(read_image(root / paths[0], shorter_side=SIDE))
    assert torch.equal(transform(caches["bicubic"].read(0)), direct)
    assert not torch.equal(transform(caches["bilinear"].read(0)), direct)


def test_broken_images_raise_the_same_error(folder, tmp_path):
    root, paths = folder
    with pytest.raises(ValueError, match="truncated") as direct:
        read_image(root / paths[3], shorter_side=SIDE)
    cache = opened(folder, tmp_path)
    with pytest.raises(ValueError, match="truncated") as cached:
        cache.read(3)
    assert str(cached.value) == str(direct.value)
    with pytest.raises(IndexError):
        cache.read(5)


def test_nothing_but_broken_images_is_a_cache_too(folder, tmp_path):
    root, _ = folder
    for _ in range(2):
        cache = opened((root, ["broken.jpg"]), tmp_path)
        with pytest.raises(ValueError, match="truncated"):
            cache.read(0)


def test_a_cache_is_made_once_and_anew_for_new_content(folder, tmp_path, monkeypatch):
    root, paths = folder
    steps = []
    opened(folder, tmp_path, advance=lambda: steps.append(1))
    assert (len(steps), len(names(tmp_path))) == (5, 2)
    opened(folder, tmp_path, advance=lambda: steps.append(1))
    assert (len(steps), len(names(tmp_path))) == (5, 2)
    jpeg(root / paths[2], noise(20, 22, seed=1))
    renewed = opened(folder, tmp_path, advance=lambda: steps.append(1))
    assert (len(steps), len(names(tmp_path))) == (10, 4)
    expected = np.asarray(read_image(root / paths[2]))
    assert np.array_equal(renewed.read(2).permute(1, 2, 0).numpy(), expected)
    opened(folder, tmp_path, shorter_side=SIDE - 1)
    assert len(names(tmp_path)) == 6
    opened((root, paths[::-1]), tmp_path)
    assert len(names(tmp_path)) == 8
    monkeypatch.setattr(image_cache, "version", lambda package: f"another {package}")
    opened(folder, tmp_path)
    assert len(names(tmp_path)) == 10
    monkeypatch.setattr(image_cache, "FORMAT", 0)
    opened(folder, tmp_path)
    assert len(names(tmp_path)) == 12


def test_the_usual_place_is_the_cache_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "home"))
    cache = opened(folder, tmp_path, folder=None)
    assert cache.pixels.parent == tmp_path / "home" / "images"


def test_what_nobody_has_used_for_a_month_goes_when_a_cache_is_made(folder, tmp_path):
    used, left = opened(folder, tmp_path), opened(folder, tmp_path, shorter_side=SIDE - 1)
    long_ago = time.time() - image_cache.UNUSED - 10
    (tmp_path / "cache" / f".{used.pixels.name}.x7").write_bytes(b"left by a killed process")
    others = {"thesis.txt", "thesis.npz", "thesis.pixels", ".thesis.npz.x7"}
    for name in others:
        (tmp_path / "cache" / name).write_text("of somebody who keeps it here")
    assert left.read(0).shape == (3, 23, 41)
    for path in (tmp_path / "cache").iterdir():
        os.utime(path, (long_ago, long_ago))
    assert opened(folder, tmp_path).pixels == used.pixels
    assert len(names(tmp_path)) == 9, "nothing goes before its place is needed"
    new = opened(folder, tmp_path, shorter_side=SIDE - 2)
    kept = {
        path.with_suffix(suffix).name for path in (used.pixels, new.pixels) for suffix in (".npz", ".pixels")
    }
    assert set(names(tmp_path)) == kept | others
    with pytest.warns(UserWarning, match="damaged or gone"):
        assert left.read(1).shape == (3, 148, 23), "a cache in use stays readable"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_killed_process_leaves_nothing_that_is_taken_for_whole(folder, tmp_path):
    steps = []

    def die_at_the_third():
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            opened(folder, tmp_path, advance=die_at_the_third)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert names(tmp_path)
    assert all(name.startswith(".") for name in names(tmp_path))
    cache = opened(folder, tmp_path, advance=lambda: steps.append(1))
    assert len(steps) == 5
    assert cache.read(4).flatten().tolist() == [9, 8, 7]


@pytest.mark.parametrize("damage", ["no index", "half an index", "half the pixels", "no pixels"])
def test_a_damaged_cache_is_made_again(folder, tmp_path, damage):
    cache = opened(folder, tmp_path)
    path = cache.pixels if "pixels" in damage else cache.pixels.with_suffix(".npz")
    if "half" in damage:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.unlink()
    again = opened(folder, tmp_path)
    assert torch.equal(again.read(1), opened(folder, tmp_path / "elsewhere").read(1))


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("code ran",)


def test_an_index_cannot_run_code(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = opened(folder, tmp_path).pixels.with_suffix(".npz")
    with np.load(index) as archive:
        np.savez(index, **{**archive, "causes": np.array([_Evil()] * 5, object)})
    with pytest.raises(ValueError, match="truncated"):
        opened(folder, tmp_path).read(3)  # made again
    assert not (tmp_path / "code ran").exists()


def test_the_index_takes_its_place_last(folder, tmp_path, monkeypatch):
    placed, replace = [], Path.replace
    monkeypatch.setattr(Path, "replace", lambda *ends: placed.append(ends[1].suffix) or replace(*ends))
    opened(folder, tmp_path)
    assert placed == [".pixels", ".npz"]


def test_two_that_make_the_same_cache_do_no_harm(folder, tmp_path):
    """Each waits after its first image until the other has begun."""
    gate, results = threading.Barrier(2, timeout=20), []

    def make():
        waits = iter([gate.wait])
        cache = opened(folder, tmp_path, advance=lambda: next(waits, int)())
        results.append([cache.read(i).clone() for i in (0, 1, 2, 4)])

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (errno.ENOSPC, "no space"),
        (errno.EDQUOT, "no space"),
        (errno.EROFS, "permission"),
        (errno.EACCES, "permission"),
        (errno.EPERM, "permission"),
    ],
)
@pytest.mark.parametrize("full", ["pixels", "index"])
def test_a_disk_that_takes_no_more_is_said_and_nothing_is_left(
    folder, tmp_path, monkeypatch, full, code, cause
):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(*((image_cache, "_write_pixels") if full == "pixels" else (np, "savez")), fail)
    with pytest.raises(OSError, match=f"{cause} .*SOFTWARP_CACHE.*data.cache=false") as raised:
        opened(folder, tmp_path)
    assert raised.value.errno == code
    assert names(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_when_buffers_are_written_leaves_nothing(folder, tmp_path, monkeypatch):
    def fill(file, **_):
        file.write(b"waits in the buffer")
        with Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), file.fileno())

    monkeypatch.setattr(np, "savez", fill)
    with pytest.raises(OSError, match="no space"):
        opened(folder, tmp_path)
    assert names(tmp_path) == []


def test_a_missing_file_is_a_broken_image_until_it_is_there(folder, tmp_path):
    root, paths = folder
    cache = opened((root, [*paths, "missing.jpg"]), tmp_path)
    with pytest.raises(ValueError, match=r"missing\.jpg: the file is missing"):
        cache.read(5)
    jpeg(root / "missing.jpg", noise(30, 30))
    assert opened((root, [*paths, "missing.jpg"]), tmp_path).read(5).shape == (3, 24, 24)


@pytest.mark.parametrize("damage", ["zeroed", "one bit", "cut short", "gone"])
def test_pixels_that_are_not_what_was_written_come_from_the_file(folder, tmp_path, damage):
    cache = opened(folder, tmp_path)
    expected = [cache.read(item) for item in (0, 1)]
    whole = bytearray(cache.pixels.read_bytes())
    if damage == "gone":
        cache.pixels.unlink()
    elif damage == "cut short":
        os.truncate(cache.pixels, 10)
    else:
        whole[:] = bytes(len(whole)) if damage == "zeroed" else whole
        whole[5] ^= 16
        with cache.pixels.open("r+b") as file:  # in place, as a bad disk does
            file.write(whole)
    with pytest.warns(UserWarning, match="damaged or gone"):
        assert torch.equal(cache.read(0), expected[0])
    made = []
    again = opened(folder, tmp_path, advance=lambda: made.append(1))
    assert len(made) == 5, "it is made again"
    assert all(torch.equal(again.read(item), expected[item]) for item in (0, 1))


def test_a_damaged_cache_of_an_image_that_is_gone_names_it(folder, tmp_path):
    root, paths = folder
    cache = opened(folder, tmp_path)
    os.truncate(cache.pixels, 0)
    (root / paths[1]).unlink()
    with (
        pytest.warns(UserWarning, match="damaged or gone"),
        pytest.raises(ValueError, match=r"tall\.jpg: the file is missing"),
    ):
        cache.read(1)


def test_only_errors_of_the_file_itself_make_an_image_broken(folder, tmp_path, monkeypatch):
    real = image_cache.open_image

    def refuse(code):
        def fail(path):
            if path.name == "wide.jpg":
                raise OSError(code, os.strerror(code), str(path))
            return real(path)

        return fail

    monkeypatch.setattr(image_cache, "open_image", refuse(errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        opened(folder, tmp_path)
    monkeypatch.setattr(image_cache, "open_image", refuse(errno.EACCES))  # chmod does not stop root
    assert opened(folder, tmp_path).read(0).shape == (3, 24, 43)  # only its hash could not be made


def test_heic_is_decoded_again_once_it_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(image_cache, "reads_heic", lambda: False)
    Image.new("RGB", (9, 9)).save(tmp_path / "plain.jpg")
    files = [tmp_path / "photo.HEIC", tmp_path / "plain.jpg"]
    keys = [image_cache._key(each, 8, 1) for each in (files, files[1:])]
    monkeypatch.setattr(image_cache, "reads_heic", lambda: True)
    assert image_cache._key(files, 8, 1) != keys[0]
    assert image_cache._key(files[1:], 8, 1) == keys[1], "caches of before stay"


def test_threads_do_not_run_far_ahead():
    waiting = iter(range(100))
    results = image_cache._in_order(lambda item: item, waiting, workers=2)
    assert next(results) == 0
    assert next(waiting) == 8  # those before it are being computed
    assert list(results) == [*range(1, 8), *range(9, 100)]


def test_a_pickled_cache_reads_the_same(folder, tmp_path):
    cache = opened(folder, tmp_path)
    first = cache.read(0).clone()
    copy = pickle.loads(pickle.dumps(cache))
    copy.read(0).zero_()  # is a copy: nobody else sees it
    assert torch.equal(copy.read(0), first)
    assert torch.equal(cache.read(0), first)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_dataset_reads_from_the_cache_in_workers(folder, tmp_path):
    root, paths = folder
    cache = opened(folder, tmp_path)
    transform = images.train_transform("resize_random_crop", resize=SIDE, crop=16)
    files = FileStore(root, paths, shorter_side=SIDE)
    cached, direct = (
        ImageDataset(store, torch.zeros(5), transform, replace=False) for store in (cache, files)
    )
    draws = [[(0, 1), (3, 2), (1, 3)], [(2, 4), (4, 5)]]
    expected = [direct.__getitems__(draw) for draw in draws]
    shutil.rmtree(root)  # so that pixels come from the cache or not at all
    batches = list(DataLoader(cached, batch_sampler=draws, collate_fn=as_batch, num_workers=2))
    for batch, wanted in zip(batches, expected, strict=True):
        assert torch.equal(batch.images, wanted.images)
        assert batch.items.tolist() == wanted.items.tolist()
        assert batch.broken == wanted.broken
