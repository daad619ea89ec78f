"""Training on image files, as a user with a folder meets it."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

from softwarp import load, train
from softwarp.cli import app
from softwarp.data.tables import read_table
from softwarp.events import Drawn
from softwarp.models.adding_weights import add_weights
from softwarp.models.backbones import build_backbone
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.result import Counts
from softwarp.runs.run import Run
from softwarp.training.follow import tell_download
from softwarp.training.job import Job
from softwarp.training.own_recipe import settings_for
from softwarp.training.train import train_recipe

PHASE = {"epochs": 1, "learning_rate": 0.002, "proxy_learning_rate": 0.02}


def draw(folder, classes=8, images=5, side=24, suffix="png"):
    """A folder of classes: noise around one colour each, so that there is something to learn."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        colour = generator.integers(0, 255, 3)
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(images):
            pixels = np.clip(colour + generator.normal(0, 30, (side, side + number, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"class {label}" / f"{number}.{suffix}")
    return folder


def small(root, **changes):
    settings = {
        "data": {"name": "folder", "root": str(root), "resize": 18, "crop": 16, "workers": 0},
        "model": {"backbone": "test_efficientnet.r160_in1k", "embedding_size": 8},
        "loss": {"name": "warped_softmax", "settings": {"alpha": 4.0, "k1": 0.8, "k2": 1.2}},
        "batches": {"classes": 3, "samples": 2},
        "phases": [PHASE],
        "evaluation": {"split": "test", "ks": [1, 2]},
    }
    for key, value in changes.items():
        settings[key] = settings.get(key, {}) | value if isinstance(value, dict) else value
    return parse_recipe(settings)


def test_a_crop_that_the_network_does_not_read_is_refused_before_training(tmp_path):
    root = draw(tmp_path / "images")
    recipe = small(root, model={"backbone": "test_vit"}, data={"resize": 100, "crop": 90})
    with pytest.raises(ValueError, match=r"test_vit .*multiples of 16 .*90; set data\.crop=80 or 96"):
        train_recipe(recipe, tmp_path / "run")
    assert not Run(tmp_path / "run").started()
    with pytest.raises(ValueError, match=r"test_vit .*multiples of 16"):
        train(root, "model.backbone=test_vit", "data.crop=90", output=tmp_path / "own")


def test_a_network_sees_images_in_training_as_it_is_asked_to(tmp_path):
    root = draw(tmp_path / "images")
    how = {"interpolation": "bicubic", "crop_mode": "squash", "resize": 32, "crop": 32}
    run = train_recipe(small(root, model={"backbone": "test_vit"}, data=how), tmp_path / "run")
    model = load(run.folder)
    assert (model.interpolation, model.crop_mode, model.network.pooling) == ("bicubic", "squash", "native")
    files = [root / item.file for item in run.items()]
    torch.testing.assert_close(model.embed(files), run.load_embeddings()["embeddings"], rtol=1e-4, atol=1e-5)


def test_a_folder_is_trained_and_evaluated_on_other_classes(tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.memory.ctypes", None)  # library calls leave malloc alone
    run = train_recipe(small(draw(tmp_path / "images")), tmp_path / "run")
    result = run.result()
    assert result.classes == Counts(train=6, evaluated=2)
    assert result.images == Counts(train=30, evaluated=10)
    assert result.broken_images == ()
    assert run.load_embeddings()["embeddings"].shape == (10, 8)
    items = run.items()
    assert {item.split for item in items} == {"test"}
    assert [item.row for item in items] == list(range(10))
    again = load(run.folder).embed([tmp_path / "images" / item.file for item in items])
    torch.testing.assert_close(again, run.load_embeddings()["embeddings"])
    assert {item.class_name for item in items} == {item.file.split("/")[0] for item in items}


def test_workers_and_the_cache_of_pixels_change_nothing_but_speed(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "cache"))
    root = draw(tmp_path / "images")
    alone = train_recipe(small(root), tmp_path / "alone").load_embeddings()["embeddings"]
    helped = train_recipe(small(root, data={"workers": 2}), tmp_path / "helped").load_embeddings()[
        "embeddings"
    ]
    assert torch.equal(alone, helped)
    cached = train_recipe(
        small(root, data={"cache": True, "resize": 24}), tmp_path / "cached"
    ).load_embeddings()["embeddings"]
    plain = train_recipe(small(root, data={"resize": 24}), tmp_path / "plain").load_embeddings()["embeddings"]
    assert torch.equal(cached, plain)  # at that size nothing is resized


@pytest.mark.parametrize("cache", [False, True])
def test_a_csv_file_of_absolute_paths_trains_like_the_folder(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "cache"))
    root = draw(tmp_path / "images")
    for label in range(8):
        (root / f"class {label}" / "0.png").write_bytes(b"not an image")
    rows = [f"{path},{path.parent.name}" for path in sorted(root.glob("*/*.png"))]
    file = tmp_path / "lists" / "own.csv"
    file.parent.mkdir()
    file.write_text("\n".join(["path,label", *rows]))
    listed = train_recipe(small(file, data={"name": "csv", "cache": cache}), tmp_path / "listed")
    folder = train_recipe(small(root, data={"cache": cache}), tmp_path / "folder")
    assert torch.equal(listed.load_embeddings()["embeddings"], folder.load_embeddings()["embeddings"])
    skipped = tuple(str(root / path) for path in folder.result().left_out)
    assert listed.result().left_out == skipped
    assert len(skipped) == 2
    assert settings_for(file, protocol="test")["data"]["crop"] == 160  # the images are seen to be small


def test_a_broken_image_is_skipped_and_named_unless_strict(tmp_path):
    root = draw(tmp_path / "images")
    for label in range(8):
        (root / f"class {label}" / "0.png").write_bytes(b"not an image")
    run = train_recipe(small(root, phases=[{**PHASE, "epochs": 3}]), tmp_path / "run")
    assert set(run.result().broken_images) <= {f"class {label}/0.png" for label in range(8)}
    assert run.result().broken_images
    assert len(run.load_embeddings()["embeddings"]) == 8  # two classes of five, one broken each
    assert len(run.result().left_out) == 2
    with pytest.raises(ValueError, match=r"0\.png"):
        train_recipe(small(root, data={"strict": True}), tmp_path / "strict")


def test_a_broken_image_in_a_worker_is_one_line(tmp_path):
    root = draw(tmp_path / "images")
    for path in root.glob("*/*.png"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"\.png") as caught:
        train_recipe(small(root, data={"workers": 1}), tmp_path / "run")
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_on_other_images_is_not_taken_for_this_one(tmp_path):
    root = draw(tmp_path / "images")
    train_recipe(small(root), tmp_path / "run")
    Image.new("RGB", (20, 20)).save(root / "class 0" / "new.png")
    with pytest.raises(ValueError, match=r"other images.*--fresh"):
        train_recipe(small(root), tmp_path / "run", resume=True)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(ValueError, match="other images"):
        train_recipe(small(root), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("cores", "device", "data", "workers"),
    [
        (2, "cpu", {"cache": True}, 0),
        (2, "cpu", {"cache": False}, 1),
        (8, "cpu", {"cache": True}, 2),
        (64, "cpu", {"cache": False}, 4),
        (4, "cuda", {"cache": True}, 4),
        (64, "mps", {"cache": False}, 8),
        (64, "cuda", {"workers": 0}, 0),
        (2, "cpu", {"workers": 7}, 7),
    ],
)
def test_processes_that_decode(cores, device, data, workers, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    recipe = small(tmp_path, data={"workers": None, **data})
    accelerator = SimpleNamespace(device=torch.device(device))
    assert Job.workers(SimpleNamespace(recipe=recipe, accelerator=accelerator)) == workers


def test_ctrl_c_reaches_the_main_process_and_not_its_workers(tmp_path):
    root = draw(tmp_path / "images", side=300)
    half = tmp_path / "run" / "choice" / "fold-0"  # which trains first
    changes = ["phases.0.epochs=60", "data.workers=1", "data.crop=32", "evaluation.baseline=false"]
    words = [
        sys.executable,
        "-m",
        "softwarp",
        "train",
        "--data",
        root,
        "--output",
        tmp_path / "run",
        *changes,
    ]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and not (half / "checkpoint.pt").exists():
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    message = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 130, message
    assert "To resume: softwarp train --data" in message
    assert not Run(half).finished()
    assert Run(half).load_checkpoint()[0]["state"]["step"] > 0


def test_a_class_with_one_image_trains_along(tmp_path):
    root = draw(tmp_path / "images")
    Image.new("RGB", (20, 20)).save(root / "class 0" / "5.png")
    (root / "alone").mkdir()
    Image.new("CMYK", (20, 20)).save(root / "alone" / "one.jpg")
    result = train_recipe(small(root), tmp_path / "run").result()
    assert result.images.train + result.images.evaluated == 8 * 5 + 2


@contextmanager
def not_as_root():
    """Root may read everything; nobody may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_folder_is_named():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to all but their owner
        Path(folder).chmod(0o755)
        root = draw(Path(folder) / "images")
        (root / "class 3").chmod(0)
        message = r"class 3 .*Permission denied.*chmod"
        with not_as_root(), pytest.raises(OSError, match=message):
            train_recipe(small(root), Path(folder) / "run")
        (root / "class 3").chmod(0o755)
        with not_as_root():
            assert len(read_table("folder", root).paths) == 8 * 5  # nothing else was in the way


def test_weights_from_the_hub_are_announced_before_they_are_fetched(tmp_path, monkeypatch):
    address = "https://hub.example/weights"
    monkeypatch.setattr("softwarp.training.follow.address_to_fetch", lambda name: address)
    root, said = draw(tmp_path / "images"), io.StringIO()

    def prepare(*_):
        assert said.getvalue() == f"fetching the weights of test_resnet from {address}\n"
        raise ValueError("far enough")

    monkeypatch.setattr("softwarp.training.train.prepare", prepare)
    recipe = small(root, model={"backbone": "test_resnet", "pretrained": True})
    with pytest.raises(ValueError, match="far enough"):
        train_recipe(recipe, tmp_path / "run", on_event=Drawn(Progress(console=Console(file=said))))


def test_weights_that_were_added_are_not_announced(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    recipe = small(tmp_path, model={"backbone": "test_resnet", "pretrained": True})
    said = []
    tell_download(recipe, said.append)
    assert len(said) == 1
    torch.save(build_backbone("test_resnet").model.state_dict(), tmp_path / "given.pth")
    add_weights(tmp_path / "given.pth", "test_resnet")
    tell_download(recipe, said.append)
    assert len(said) == 1


def test_one_command_from_a_folder_to_a_model(tmp_path):
    root = draw(tmp_path / "my images", classes=8, images=6, side=36)
    changes = ["phases.0.epochs=2", "data.workers=0", "data.crop=32", "data.resize=36"]
    words = ["train", "--data", str(root), "--output", str(tmp_path / "run"), "--verbose", *changes]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "backbone: efficientnet_lite0" in answer.output  # what was chosen is shown
    assert "before" in answer.output
    assert "recall@1" in answer.output
    assert Run(tmp_path / "run").finished()
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0
    assert "recall@1" in again.output
    assert ["--fresh" in each.stderr for each in (answer, again)] == [
        False,
        True,
    ]


def test_seeds_are_reported_as_mean_and_deviation(tmp_path):
    words = [
        "train",
        "glyphs_proxy_nca_pp",
        "--seeds",
        "2",
        "--output",
        str(tmp_path),
        "--protocol",
        "validation",
    ]
    changes = ["data.max_classes=20", "phases.0.epochs=1", "phases.1.epochs=1", "batches.classes=10"]
    answer = CliRunner().invoke(app, [*words, *changes])
    assert answer.exit_code == 0, answer.output
    summary = json.loads((tmp_path / "seeds.json").read_text())
    values = [Run(tmp_path / f"seed-{seed}").result().metrics["recall@1"] for seed in (0, 1)]
    assert summary["mean"]["recall@1"] == pytest.approx(sum(values) / 2)
    assert summary["deviation"]["recall@1"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert "±" in answer.output
    assert f"softwarp report {tmp_path}\n" in answer.output
    assert "seed 0, 1 of 2\n" in answer.stderr
    assert "seed 1, 2 of 2\n" in answer.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hist"], "loss.name=hist"),
        (["cub_lit"], "did you mean cub_lite"),
        (["cub_lite"], "add data.root=FOLDER"),
        (["cub_lite", "data.root=/nowhere"], "/nowhere does not exist"),
        (["cub_lite", "phases.7.epochs=3"], "2 entries, no '7'"),
        (["cub_lite", "phases.0.epoch=3"], "did you mean phases.0.epochs"),
        (["cub_lite", "--protocol", "tset"], "protocol is validation or test, not 'tset'"),
        (["cub_lite", "sop"], "cub_lite and sop"),
        (["loss.name=proxy_nca_p"], "did you mean proxy_nca"),
        (["--resume", "--output", "nothing_here"], "nothing_here holds no run"),
        (
            ["evaluation.patience=3", "evaluation.every=1", "--protocol", "test"],
            "patience and schedule plateau",
        ),
        (["evaluation.patience=3", "evaluation.every=99", "--protocol", "validation"], "between 1 and 12"),
        (["evaluation.metric=recal@1"], "choose from recall@1"),
        (["phases.1.loss_settings.aplha=3"], "did you mean alpha"),
        (["phases.1.loss_settings.k1=2"], "0 < k1 <= 1 <= k2"),
        (["loss.settings.alpha=abc"], "alpha='abc'"),
        (["trackers=[tensorboard"], "'[tensorboard'"),
        (["loss.name=triplet", "batches.samples=1"], "batches.samples is 1"),
        (["data.max_classes=3"], "only 3 classes"),
    ],
)
def test_mistakes_are_named_with_their_cure(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["train", *words])
    assert answer.exit_code != 0
    assert message in str(answer.exception)
    assert not list(tmp_path.glob("runs/*"))  # so that the right command is not refused afterwards


def test_recipes_are_listed_and_shown():
    listed = CliRunner().invoke(app, ["recipes"])
    assert listed.exit_code == 0
    assert "cub_large" in listed.output
    shown = CliRunner().invoke(app, ["show", "cub", "phases.0.epochs=5"])
    assert "epochs: 5" in shown.output
    assert "alpha: 24.68" in shown.output


def test_what_is_left_out_is_said_and_images_that_vanish_are_skipped(tmp_path, monkeypatch):
    root = draw(tmp_path / "images")
    (root / "stray.png").write_bytes((root / "class 0" / "0.png").read_bytes())
    (root / "class 0" / "0.png").unlink()
    (root / "class 0" / "0.png").symlink_to(root / "gone.png")
    begin = Job.stream

    def vanishing(job):
        (root / "class 1" / "0.png").unlink(missing_ok=True)
        return begin(job)

    monkeypatch.setattr(Job, "stream", vanishing)
    with (
        pytest.warns(UserWarning, match="1 of 40 "),
        pytest.warns(UserWarning, match=r"no class folder.*stray\.png"),
    ):
        run = train_recipe(small(root, phases=[{**PHASE, "epochs": 4}]), tmp_path / "run")
    result = run.result()
    assert {"class 0/0.png", "class 1/0.png"} <= {*result.broken_images, *result.left_out}
    with pytest.raises(FileNotFoundError, match=r"class 0/0\.png"):
        train_recipe(small(root, data={"strict": True}), tmp_path / "strict")
