"""Networks compared in training: ranked on held-out training classes, within the time, and written down."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from support.tiny_networks import NETWORKS, draw, places  # noqa: F401
from typer.testing import CliRunner

import softwarp
from softwarp.cli import app
from softwarp.data.splits import SplitPlan, divide
from softwarp.data.tables import read_table
from softwarp.frozen import features
from softwarp.runs.run import Run
from softwarp.training import entry, networks

QUICK = ("phases.0.epochs=0", "data.workers=0", "evaluation.clustering=false", "evaluation.ks=[1]")
SLOW, FAST = "test_vit", "test_efficientnet"  # as the tests below time them


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("images") / "birds")


@pytest.fixture
def timed(monkeypatch):
    """One network needs 2 ms an image and the other 5, and nothing is decoded."""
    milliseconds = {FAST: 2.0, SLOW: 5.0}
    monkeypatch.setattr(networks, "milliseconds_of", lambda model: milliseconds[model.network.name])
    monkeypatch.setattr(networks, "decoding_seconds", lambda source: 0.0)
    return milliseconds


@pytest.fixture
def judged(monkeypatch):
    """The names of the networks that are judged from now on."""
    names, judge = [], networks._judged
    monkeypatch.setattr(
        networks, "_judged", lambda question, each: names.append(each.name) or judge(question, each)
    )
    return names


def run_on(images, folder, *changes, told=None, **settings):
    listener = (lambda _: None) if told is None else (lambda event: told.append(str(event)))
    return softwarp.train(images, *QUICK, *changes, output=folder, on_event=listener, **settings)


def lines(told):
    return [line for line in told if line.startswith("backbone: ")]


def ranking_in(folder):
    return json.loads((folder / "choice" / "networks.json").read_text())


@pytest.fixture(scope="module")
def compared(images, tmp_path_factory):
    """A run that chose among both networks, and what it told."""
    folder, told = tmp_path_factory.mktemp("compared") / "run", []
    return folder, run_on(images, folder, told=told), told


def test_the_best_of_the_networks_at_hand_is_trained_and_all_are_shown(compared):
    folder, model, told = compared
    choice = model.choice
    best = max(choice.networks, key=lambda each: each.value)
    assert {each.name for each in choice.networks} == set(NETWORKS)
    assert (model.network.name, choice.network) == (best.name, best.name)
    times = [each.milliseconds for each in choice.networks]
    assert times == sorted(times)
    said = lines(told)
    assert len(said) == 3
    for each in choice.networks:
        assert any(
            f"{each.name}, MAP@R {100 * each.frozen:.1f} frozen, {100 * each.calibrated:.1f} calibrated"
            in line
            for line in said
        )
    assert f"{best.name}, the best of 2 networks" in said[-1]
    assert f"{best.name}, the best of 2 networks" in repr(choice)
    assert f"{best.name} *" in choice._repr_html_()
    found = ranking_in(folder)
    assert found["chosen"] == best.name
    assert set(found["tried"]) == set(NETWORKS)


def test_the_time_that_it_took_is_part_of_the_budget(compared):
    folder, model, _ = compared
    seconds = sum(each.seconds for each in model.choice.networks)
    assert seconds > 0
    ladder, plan = (
        json.loads((folder / "choice" / f"{name}.json").read_text()) for name in ("ladder", "plan")
    )
    assert plan["plan"]["measuring"] > 0
    assert ladder["spent"] == pytest.approx(seconds + plan["plan"]["measuring"])


def test_a_network_that_does_not_read_the_crop_is_left_out(images, tmp_path):
    told = []
    model = run_on(images, tmp_path / "run", "data.crop=90", told=told)
    assert model.network.name == "test_efficientnet"
    assert any("test_vit is left out" in line and "set data.crop=80 or 96" in line for line in lines(told))


def test_a_network_is_worth_what_its_first_two_rungs_are(compared, images, tmp_path):
    for each in compared[1].choice.networks:
        choice = run_on(images, tmp_path / each.name, backbone=each.name).choice
        best = max(c.map_at_r for c in choice.candidates if c.rung == "calibrated")
        assert each.frozen == pytest.approx(choice.candidates[0].map_at_r)
        assert each.calibrated == pytest.approx(best)
        assert not choice.networks
        assert choice.network == ""


def test_features_that_networks_were_ranked_by_are_not_computed_again(images, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "cache"))
    counts, forward = [], features._forward
    monkeypatch.setattr(
        features,
        "_forward",
        lambda model, files, together: counts.append(len(files)) or forward(model, files, together),
    )
    model = run_on(images, tmp_path / "run")
    assert model.result.images.train == 24
    assert sum(counts) == 2 * 24 + 8  # by both networks, then the test images by the chosen one


def test_only_classes_that_train_are_looked_at(tmp_path, monkeypatch):
    seen, judge = set(), networks.FrozenHalves

    def noting(recipe, source, *rest):
        seen.update(source.train_items.files)
        return judge(recipe, source, *rest)

    monkeypatch.setattr(networks, "FrozenHalves", noting)
    many = draw(tmp_path / "many", classes=22, images=2)
    table = read_table("folder", many)
    train = {table.paths[place] for place in divide(table.labels, None, SplitPlan("validation")).train}
    run_on(many, tmp_path / "run", protocol="validation")
    assert seen == train


def test_in_a_closed_set_held_out_images_rank(tmp_path):
    generator = np.random.default_rng(0)
    for label in range(6):
        for number in range(6):
            place = (
                tmp_path / "set" / ("train" if number < 4 else "test") / f"class {label}" / f"{number}.png"
            )
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 40 * (label + 1), (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place)
    choice = run_on(tmp_path / "set", tmp_path / "run").choice
    taken = next(each for each in choice.networks if each.name == choice.network)
    assert choice.candidates[0].images is not None
    assert taken.frozen == pytest.approx(choice.candidates[0].images.map_at_r)


def test_a_network_that_does_not_fit_into_the_time_is_left_out_and_asked_with_more(
    images, tmp_path, timed, judged
):
    folder, told = tmp_path / "run", []
    timed[SLOW] = 10_000.0  # 24 images take four minutes
    model = run_on(images, folder, budget="2m", told=told)
    assert (judged, model.network.name) == ([FAST], FAST)
    (line,) = [line for line in lines(told) if "left out" in line]
    assert line.startswith(f"backbone: {SLOW} ")
    assert "24 images would take 4 minutes" in line
    assert f"{FAST}, the only one of 2 networks that counts" in lines(told)[-1]
    assert [each.left_out != "" for each in model.choice.networks] == [False, True]
    told.clear()
    again = run_on(images, folder, budget="10m", told=told)
    assert judged == [FAST, SLOW]  # nothing is asked twice
    best = max(again.choice.networks, key=lambda each: each.value).name
    assert again.network.name == best == SLOW  # its run takes the place of the other
    assert Run(folder).recipe().model.backbone == SLOW
    assert run_on(images, folder, budget="2m").network.name == SLOW  # it has been judged by now
    assert judged == [FAST, SLOW]


def test_no_time_for_any_network_takes_the_fastest(images, tmp_path, timed, judged):
    told = []
    timed.update({FAST: 10_000.0, SLOW: 20_000.0})
    model = run_on(images, tmp_path / "run", budget="10s", told=told)
    assert (judged, model.network.name) == ([], FAST)
    assert f"{FAST}, the fastest, because there was no time to compare 2 networks" in lines(told)[-1]


@pytest.mark.parametrize("moment", [1, 2])
def test_a_stop_while_networks_are_judged_ends_with_the_same_decision(
    images, compared, tmp_path, timed, judged, monkeypatch, moment
):
    folder, judge = tmp_path / "run", networks._judged

    def stop(question, each):
        if len(judged) == moment - 1:
            raise KeyboardInterrupt
        return judge(question, each)

    monkeypatch.setattr(networks, "_judged", stop)
    with pytest.raises(KeyboardInterrupt):
        run_on(images, folder)
    assert [each["frozen"] is not None for each in ranking_in(folder)["tried"].values()].count(
        True
    ) == moment - 1
    monkeypatch.setattr(networks, "_judged", judge)
    monkeypatch.setattr(networks, "milliseconds_of", None)  # what was timed stays
    model = run_on(images, folder)
    assert sorted(judged) == sorted(NETWORKS)  # each once
    values = [
        {each.name: each.value for each in choice.networks} for choice in (model.choice, compared[1].choice)
    ]
    assert values[0] == pytest.approx(values[1])
    assert model.choice.network == compared[1].choice.network


def test_a_finished_choice_is_not_asked_again(compared, images, monkeypatch):
    folder, model, _ = compared
    before = (folder / "choice" / "networks.json").read_bytes()
    monkeypatch.setattr(networks, "_judged", None)
    monkeypatch.setattr(networks, "milliseconds_of", None)
    told = []
    again = run_on(images, folder, told=told)
    assert again.network.name == model.network.name
    assert again.choice == model.choice
    assert not lines(told)
    assert (folder / "choice" / "networks.json").read_bytes() == before


def test_one_network_at_hand_changes_nothing(images, tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "networks_at_hand", lambda: ("efficientnet_lite0",))
    own = entry.read_own(images, QUICK)
    assert (own.networks, own.changes) == (None, QUICK)  # as if nothing had been looked for
    monkeypatch.setattr(entry, "networks_at_hand", lambda: ("test_vit",))
    told = []
    one = run_on(images, tmp_path / "one", told=told)
    named = run_on(images, tmp_path / "named", backbone="test_vit")
    assert one.choice.model_dump(exclude={"rungs"}) == named.choice.model_dump(exclude={"rungs"})
    assert one.result.metrics == named.result.metrics
    assert not lines(told)
    assert not (tmp_path / "one" / "choice" / "networks.json").exists()


def test_keys_of_the_model_leave_the_network_to_the_recipe(images):
    own = entry.read_own(images, ["model.embedding_size=8"])
    assert (own.networks, own.changes) == (None, ("model.embedding_size=8",))
    assert entry.read_own(images, ["model.embedding_size=8"], backbone="auto").networks.names
    assert sorted(entry.read_own(images, ["loss.name=arcface"]).networks.names) == sorted(NETWORKS)


def test_a_folder_that_holds_a_run_keeps_its_network(images, tmp_path, judged):
    folder, told = tmp_path / "run", []
    run_on(images, folder, backbone="test_efficientnet")
    model = run_on(images, folder, told=told)
    assert (model.network.name, judged) == ("test_efficientnet", [])
    (line,) = lines(told)
    assert "test_vit" in line
    assert "--fresh" in line
    fresh = run_on(images, folder, fresh=True)
    assert sorted(judged) == sorted(NETWORKS)
    assert {each.name for each in fresh.choice.networks} == set(NETWORKS)


def test_weights_that_come_later_do_not_change_a_choice(compared, images, monkeypatch):
    at_hand = ("test_resnet", *networks.networks_at_hand())
    monkeypatch.setattr(entry, "networks_at_hand", lambda: at_hand)
    told = []
    assert run_on(images, compared[0], told=told).network.name == compared[1].network.name
    (line,) = lines(told)
    assert "test_resnet" in line
    assert "--fresh" in line


def test_another_recipe_is_refused_before_networks_are_judged(compared, images, monkeypatch):
    monkeypatch.setattr(networks, "_judged", None)
    monkeypatch.setattr(networks, "milliseconds_of", None)
    with pytest.raises(ValueError, match=r"seed is 0 there and 3 here.*--fresh"):
        run_on(images, compared[0], "seed=3")


def test_fast_leaves_slow_networks_out(images, tmp_path, timed, judged):
    folder, told = tmp_path / "run", []
    model = run_on(images, folder, fast="3 ms", told=told)
    assert (model.network.name, judged) == (FAST, [FAST])
    assert any(f"{SLOW} is left out: it needs 5.0 ms" in line for line in lines(told))
    assert run_on(images, folder, fast="0.01s").network.name == SLOW
    assert judged == [FAST, SLOW]
    told.clear()
    again = run_on(images, folder, fast="3ms", told=told)
    assert again.network.name == FAST  # though a better one is known
    assert "only one of 2" in lines(told)[-1]


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"fast": "1ms"}, r"at most 1 ms an image; the fastest, test_efficientnet, needs 2\.0 ms"),
        ({"fast": "quick"}, r"such as 20ms; got 'quick'"),
        ({"fast": "0ms"}, r"such as 20ms; got '0ms'"),
        ({"fast": "5ms", "backbone": "test_vit"}, "--fast.*omit one"),
        ({"fast": "5ms", "changes": ("model.embedding_size=8",)}, "--backbone auto"),
        ({"backbone": "auto", "changes": ("model.backbone=test_vit",)}, "twice"),
    ],
)
def test_a_mistake_is_one_line_with_the_cure(images, tmp_path, timed, settings, cause):
    with pytest.raises(ValueError, match=cause) as caught:
        run_on(images, tmp_path / "run", *settings.pop("changes", ()), **settings)
    assert "\n" not in str(caught.value)


def test_without_any_weights_the_cure_is_said(images, tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "networks_at_hand", tuple)
    for settings in ({"backbone": "auto"}, {"fast": "5ms"}):
        with pytest.raises(ValueError, match=r"no network has weights.*softwarp weights add"):
            run_on(images, tmp_path / "run", **settings)
    assert entry.read_own(images, ()).networks is None


def test_a_network_that_cannot_be_had_is_left_out(images, places, tmp_path):  # noqa: F811
    (file,) = (places / "weights").glob("test_efficientnet.*.safetensors")
    content, told = file.read_bytes(), []
    try:
        file.write_bytes(content[:-4] + b"abcd")
        model = run_on(images, tmp_path / "run", told=told)
    finally:
        file.write_bytes(content)
    assert model.network.name == "test_vit"
    assert any("test_efficientnet is left out" in line and "is damaged" in line for line in lines(told))


def test_too_few_classes_compare_nothing(tmp_path, judged):
    told = []
    run_on(draw(tmp_path / "few", classes=4), tmp_path / "run", told=told)
    assert not judged
    (line,) = lines(told)
    assert "4 are needed" in line


def test_without_peft_a_transformer_trains_all_its_weights(images, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    assert entry.read_own(images, ()).networks.recipe_of("test_vit").model.adapter is None
    monkeypatch.undo()
    assert entry.read_own(images, ()).networks.recipe_of("test_vit").model.adapter is not None


def test_the_command_takes_a_bound_and_prints_a_table(images, tmp_path, timed):
    words = ["train", "--data", str(images), "--output", str(tmp_path / "run"), *QUICK]
    said = CliRunner().invoke(app, [*words, "--fast", "1s"])
    assert said.exit_code == 0, said.output
    assert f"{SLOW} *" in said.stdout
    assert "ms an image" in said.stdout
    assert str(CliRunner().invoke(app, ["train", "--fast", "5ms"]).exception).startswith(
        "--fast needs --data"
    )


def test_show_says_that_the_network_is_chosen(images):
    shown = CliRunner().invoke(app, ["show", "--data", str(images)])
    assert "efficientnet_lite0" in shown.stderr
    assert all(name in shown.stderr for name in NETWORKS)
    assert not CliRunner().invoke(app, ["show", "--data", str(images), "model.backbone=test_vit"]).stderr


@pytest.mark.slow
def test_two_processes_agree(images, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "softwarp", "train", "--data", images, "--output", tmp_path / "run", *QUICK]
    said = subprocess.run([*launch, *words], check=True, capture_output=True, text=True)
    found = ranking_in(tmp_path / "run")
    values = {name: max(each["frozen"], each["calibrated"]) for name, each in found["tried"].items()}
    assert set(values) >= set(NETWORKS)
    assert found["chosen"] == max(values, key=values.get) == Run(tmp_path / "run").recipe().model.backbone
    assert said.stderr.count("the best of") == 1  # the main process says it
