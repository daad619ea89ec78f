"""softwarp.train: your images, or a recipe -> a trained model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from softwarp import processes
from softwarp.data.given_lists import write_list
from softwarp.data.readers import ImageTable
from softwarp.data.tables import find_root, layout_of, read_table
from softwarp.events import OnEvent, part_of, shown, tell
from softwarp.files import check_writable
from softwarp.inference import EmbeddingModel, load
from softwarp.models.known_weights import PACKAGED
from softwarp.recipe.load import changed, run_name
from softwarp.recipe.schema import Recipe
from softwarp.runs.choice import Choice
from softwarp.runs.repeats import Repeats, summarise, write_repeats
from softwarp.runs.run import Run
from softwarp.training.backbones import NONE_HERE
from softwarp.training.budget import parse_budget, parse_fast
from softwarp.training.hand_out import HandOut, check_ships
from softwarp.training.networks import Networks, has_adapters_package, networks_at_hand
from softwarp.training.own_images import Settled, Wish, plan_and_choose
from softwarp.training.own_recipe import depth_of, recipe_for
from softwarp.training.step_batches import room_of
from softwarp.training.train import train_recipe as train_recipe

SHIPS_OWN = (
    "--ship (ship=True) is for images of your own (--data); to train a recipe on all classes, set "
    "evaluation.test_classes=none"
)
LISTED = "images.csv"  # what was given as a DataFrame or as paths and labels, in the folder of the run


@dataclass(frozen=True)
class OwnImages:
    """What `train_runs` plans and chooses from.

    Args:
        table: of the images.
        changes: KEY=VALUE, what of the recipe was set on purpose.
        budget: seconds for all of it.
        networks: those that it is chosen from; None trains that of the recipe.
    """

    table: ImageTable
    changes: tuple[str, ...] = ()
    budget: float | None = None
    networks: Networks | None = None

    @property
    def given(self) -> frozenset[str]:
        """Keys that were set on purpose."""
        return frozenset(change.partition("=")[0] for change in self.changes)


@dataclass(frozen=True)
class Trained:
    """Finished runs, one per seed.

    Args:
        recipe: of the final model; each run has its own seed.
        settled: how own images' model was chosen; empty for a recipe.
        choice: the candidates, if there was a choice.
        shipped: the first one made once more on all classes, if that was asked for.
    """

    runs: tuple[Run, ...]
    recipe: Recipe
    settled: str
    choice: Choice | None = None
    shipped: Run | None = None

    @property
    def used(self) -> Run:
        """The run whose model one uses."""
        return self.shipped or self.runs[0]

    def repeats(self) -> Repeats:
        """Return the results and, of several, mean and deviation."""
        return summarise([run.result() for run in self.runs])


def train(
    data: Any,
    *changes: str,
    backbone: str | None = None,
    budget: str | None = None,
    fast: str | None = None,
    seeds: int = 1,
    ship: bool = False,
    protocol: str | None = None,
    output: Path | str | None = None,
    depth: int | None = None,
    fresh: bool = False,
    on_event: OnEvent | None = None,
) -> EmbeddingModel:
    """Return a model that was trained on your images and chosen on held-out classes, or by a recipe.

    A quarter of the classes is held out from training and choice, and judges the model: `model.result` has
    the figures, before and after training, and `model.choice` says why it is this model. If no trained model
    beats the frozen features beyond chance, these are returned. The same call resumes what was stopped.

    Args:
        data: a folder (CLASS/IMAGE), a CSV file (path,label), a DataFrame with columns path and label, a pair
            (paths, labels), or a recipe (`softwarp.load_recipe`).
        changes: KEY=VALUE, as on the command line: "loss.name=arcface", "phases.0.epochs=20".
        backbone: the network of your images: any timm name, or "auto" for the best of those whose weights
            are on this machine, by held-out training classes. That is the default, unless a change sets a key
            of `model`; then it is efficientnet_lite0.
        budget: the time that planning, choosing and training may take: "90s", "10m", "1h".
        fast: the time that an image may take in the network on this machine, like "20ms": slower networks
            are left out.
        seeds: how many models are trained, in folders seed-N; the first is returned. `seeds.json` beside
            them has mean and deviation of their figures.
        ship: makes the first model once more in the same way, on all classes, in the folder `ship` of the
            run; this model is returned, and its `result.held_out` has the figures of the one before.
        protocol: "validation" trains on half of the training classes and judges on the other half, as often
            as you like; "test" judges on the test classes. By default that of the recipe; for images, test.
        output: folder of the run; by default runs/NAME-PROTOCOL.
        depth: how many folders name the class, at most; None for all, so the innermost.
        fresh: restarts, even if the folder holds a run.
        on_event: called with notes and progress (`softwarp.events`); by default bars on a terminal or in a
            notebook, elsewhere Python's logging.
    """
    folder, own = None if output is None else Path(output), None
    with shown(on_event) as listener:
        if isinstance(data, Recipe):
            if changes or budget or backbone or fast:
                raise ValueError(
                    "a recipe has its own settings and epochs: omit the budget, the backbone and fast, and "
                    "change it with softwarp.load_recipe(NAME, 'KEY=VALUE')"
                )
            if folder is None:
                raise ValueError("give the folder of the run: softwarp.train(recipe, output='runs/NAME')")
            if ship:
                raise ValueError(SHIPS_OWN)
            recipe = data
            if protocol is not None:
                recipe = changed(data.model_dump(mode="json"), (), source="the recipe", split=protocol)
        else:
            words = (*changes, *([f"data.depth={depth}"] if depth is not None else []))
            place = _place_of(data, folder or Path("runs") / "images-test")
            own = read_own(place, words, budget=budget, backbone=backbone, fast=fast, protocol=protocol)
            recipe = recipe_for(
                place, own.changes, split=protocol, table=own.table, tell=lambda line: tell(listener, line)
            )
            name = run_name(Path(place.resolve().name.removesuffix(".csv")), words)
            usual = name if place.name == LISTED else f"{name}-{recipe.evaluation.split}"
            folder = folder or Path("runs") / usual
        trained = train_runs(recipe, folder, own=own, seeds=seeds, ship=ship, fresh=fresh, on_event=listener)
    return load(trained.used.folder)


def read_own(
    place: Path,
    changes: Sequence[str],
    *,
    budget: str | None = None,
    backbone: str | None = None,
    fast: str | None = None,
    protocol: str | None = None,
) -> OwnImages:
    """Return your own images and what is asked of them; a network that was named becomes a change."""
    limit = None if budget is None else parse_budget(budget)
    names = _networks(changes, backbone, fast)
    if names and fast is None and len(names) == 1:
        changes, names = [*changes, *([f"model.backbone={names[0]}"] if names[0] != PACKAGED else [])], ()
    table = read_table(layout_of(place), place, depth=depth_of(changes))
    recipe_of = partial(_with_network, place, changes, table, protocol)
    networks = Networks(names, recipe_of, None if fast is None else parse_fast(fast)) if names else None
    return OwnImages(table, tuple(changes), limit, networks)


def _networks(changes: Sequence[str], backbone: str | None, fast: str | None) -> tuple[str, ...]:
    """The network that was named, or those at hand; none leaves it to the recipe."""
    if backbone is not None and any(change.startswith("model.backbone=") for change in changes):
        raise ValueError("model.backbone and --backbone (backbone=) name the network twice; omit one")
    if backbone not in (None, "auto"):
        if fast is not None:
            raise ValueError(
                "--fast (fast=) chooses a network, and --backbone (backbone=) names one; omit one"
            )
        return (backbone,)
    if backbone is None and any(change.startswith("model.") for change in changes):
        if fast is not None:
            raise ValueError("--fast (fast=) needs --backbone auto (backbone=) beside changes of the model")
        return ()
    names = networks_at_hand()
    if not names and (backbone or fast):
        raise ValueError(NONE_HERE)
    return names


def _with_network(
    place: Path, changes: Sequence[str], table: ImageTable, protocol: str | None, name: str
) -> Recipe:
    """The recipe with a network; without the package for adapters all of its weights are trained."""
    words = [*changes, f"model.backbone={name}"]
    recipe = recipe_for(place, words, split=protocol, table=table)
    if recipe.model.adapter is None or has_adapters_package():
        return recipe
    return recipe_for(place, [*words, "model.adapter=null"], split=protocol, table=table)


def _place_of(data: Any, folder: Path) -> Path:
    """The folder or CSV file of the images; a list of them is written beside the run first."""
    if not isinstance(data, str | Path):
        folder.mkdir(parents=True, exist_ok=True)
        return write_list(data, folder / LISTED)
    if not Path(data).exists():
        raise FileNotFoundError(
            f"{data} does not exist; give a folder or a CSV file of images, or a recipe: "
            f"softwarp.load_recipe({str(data)!r})"
        )
    return Path(data)


def train_runs(
    recipe: Recipe,
    folder: Path,
    *,
    own: OwnImages | None = None,
    seeds: int = 1,
    ship: bool = False,
    fresh: bool = False,
    on_event: OnEvent | None = None,
) -> Trained:
    """Return finished runs of the recipe, one per seed: in `folder`, of several in its folders seed-N.

    Args:
        own: your own images, for which crop, epochs and model are planned and chosen first.
        ship: makes the first of them once more, on all classes, in the folder `ship`.
    """
    if ship:
        check_ships(recipe)
    if seeds < 1:
        raise ValueError(f"seeds is the number of models, at least 1; got {seeds}")
    if recipe.data.name != "glyphs":
        find_root(recipe.data.name, recipe.data.root)
    check_writable(folder)
    places = {
        recipe.seed + number: folder / f"seed-{recipe.seed + number}" if seeds > 1 else folder
        for number in range(seeds)
    }
    settled = Settled(recipe, "")
    if own is not None:
        handed = HandOut(own.table, folder, places, on_event)
        wish = Wish(
            own.table,
            folder,
            given=own.given,
            budget=own.budget,
            networks=own.networks,
            seeds=seeds,
            ship=ship,
            fresh=fresh,
            on_event=on_event,
        )
        settled = plan_and_choose(recipe, wish, hand_out=handed.for_now)
        tell(on_event, settled.said)
    else:
        room = room_of(recipe)
        tell(on_event, room.protocol)
        if seeds > 1 and not fresh:
            _check_seeds(recipe, folder, seeds, room.sha256)
    if seeds > 1 and processes.is_main():
        (folder / "seeds.json").unlink(missing_ok=True)  # of an earlier set
    runs = []
    for number, (seed, place) in enumerate(places.items()):
        seeded, run = settled.recipe.model_copy(update={"seed": seed}), Run(place)
        if seeds > 1:
            tell(on_event, f"seed {seed}, {number + 1} of {seeds}")
        finished = not fresh and run.finished()
        if own is not None:
            finished = handed.finally_(seeded, run)
        else:
            with part_of(on_event) as listener:
                train_recipe(seeded, run.folder, resume=not fresh, on_event=listener)
        runs.append(run)
        if finished:
            again = "to train again, start afresh (--fresh, fresh=True)"
            tell(on_event, f"{run.folder} was already finished; {again}")
    trained = Trained(tuple(runs), settled.recipe, settled.said, settled.choice)
    if seeds > 1 and processes.is_main():
        write_repeats(folder, trained.repeats())
    if own is not None and ship:
        return replace(trained, shipped=handed.ship(settled.recipe, runs[0]))
    if own is not None:
        handed.say_if_outdated(settled.recipe)
    return trained


def _check_seeds(recipe: Recipe, folder: Path, seeds: int, sha256: str) -> None:
    """Raise a ValueError if a later seed's folder holds another run, before the first seed trains."""
    for seed in range(recipe.seed, recipe.seed + seeds):
        run = Run(folder / f"seed-{seed}")
        if run.started():
            run.check_recipe(recipe.model_copy(update={"seed": seed}))
            if run.finished():
                run.check_data(run.result().data_sha256, sha256)
