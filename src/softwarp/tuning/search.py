"""Hyper-parameter search around `train`, on validation classes; test classes are never loaded."""

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.trial import FrozenTrial, TrialState

from softwarp.data.sources import load_source
from softwarp.events import OnEvent, Work, part_of
from softwarp.files import write_json
from softwarp.losses.own_file import loss_label
from softwarp.names import did_you_mean
from softwarp.recipe.overrides import deciding_settings, difference_of, write_out
from softwarp.recipe.schema import Recipe
from softwarp.runs.provenance import OF_RUNS, RULES, check_rules
from softwarp.runs.run import Run
from softwarp.tables import names_of
from softwarp.training.step_batches import Room, fit_batches, room_of, why_not
from softwarp.training.train import BlowUpError, training
from softwarp.tuning.samplers import SAMPLERS, STARTUP, Sampler, grid, origin, suggest
from softwarp.tuning.space import (
    Parameter,
    Value,
    check_space,
    own_point,
    space_of,
    with_settings,
)
from softwarp.tuning.trial_queue import DONE, TrialQueue, named_full_disk

LOOKS = 4  # evaluations of a trial, if the recipe says nothing: hopeless ones end early


@dataclass(frozen=True)
class Trial:
    """One training with some settings, or one per fold.

    Args:
        settings: by recipe key; `apply(recipe, settings)` is what was trained.
        value: of the objective; a pruned trial has that of its last look, one that blew up has 0.
        looks: epoch and value of each evaluation on the way.
    """

    number: int
    settings: dict[str, Value]
    value: float
    state: Literal["complete", "pruned", "blew up"]
    error: str
    seconds: float
    looks: tuple[tuple[int, float], ...]
    folder: Path


@dataclass(frozen=True)
class Study:
    """A finished search. Trials are sorted: the best first, then those that were pruned or blew up."""

    recipe: Recipe
    space: dict[str, Parameter]
    objective: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return self.trials[0]

    def course(self) -> tuple[float, ...]:
        """Return the best value after each trial, in the order in which they began: what more trials gave.

        Trials that were pruned or blew up count, with nothing found.
        """
        order = sorted(self.trials, key=lambda trial: trial.number)
        found = [trial.value if trial.state == "complete" else 0.0 for trial in order]
        return tuple(accumulate(found, max))

    def best_recipe(self) -> Recipe:
        """Return the recipe as it was given, with the best settings."""
        return with_settings(self.recipe, self.best.settings)


def search(
    recipe: Recipe,
    folder: Path,
    *,
    trials: int,
    space: Mapping[str, Parameter] | None = None,
    sampler: str = "tpe",
    objective: str = "map@r",
    folds: int | None = None,
    storage: str | None = None,
    prune: bool = True,
    start: Path | None = None,
    on_event: OnEvent | None = None,
) -> Study:
    """Return the finished search: each trial is a training, judged on validation classes.

    Any number of processes may call it with the same folder, or with the same storage: together they make
    exactly `trials` trials, and each returns when all are finished. The same call resumes a search that was
    killed, with the same outcome if there is one worker. The first trial has the recipe's own settings, so
    no search ends below them; a grid is the exception.

    Args:
        recipe: its evaluation is replaced by one on validation classes; `Study.best_recipe` has it again.
        folder: study.json, the journal, and a run folder per trial, of which the best keeps its weights.
        trials: how many finished ones; pruned ones and blow-ups count.
        sampler: tpe, gp, random or grid.
        objective: any metric that the recipe measures.
        folds: judge by the mean over this many class-disjoint folds of the training classes.
        storage: address of a database that workers on several machines share.
        prune: end trials that are below the median of the others at the same epoch, in the first fold.
        start: folder of a trial whose checkpoint all trials start from.
    """
    space = dict(space_of(recipe) if space is None else space)
    check_search(recipe, space, trials, sampler, objective)
    judged = judged_recipe(recipe, objective=objective, prune=prune)
    check_steps(judged, folder, folds)
    what: dict[str, Any] = {"objective": objective, "folds": folds}
    with named_full_disk(folder):
        key = claim_folder(folder, judged, space, start=None if start is None else start.name, **what)
        queue = TrialQueue(
            f"{loss_label(recipe.loss.name)}-{key[:16]}",
            folder,
            storage,
            sampler=Sampler(sampler, recipe.seed, max(1, min(STARTUP, trials // 3))),
            pruner=_pruner(judged) if prune else NopPruner(),
        )

    def attempt(trial: optuna.Trial) -> float:
        place = trial_folder(folder, queue.study.get_trials(deepcopy=False)[trial.number])
        return _attempt(trial, place, judged, space, start=start, on_event=on_event, **what)

    with named_full_disk(folder), queue.joined():
        if sampler == "grid":
            trials = queue.fill(grid(space, trials, recipe.seed))
        elif not queue.study.get_trials(deepcopy=False):
            queue.fill([own_point(recipe, space)])
        bar = Work(on_event, "trials", total=trials)
        while queue.count()[0] < trials:
            queue.work(attempt, trials)
            _keep_weights_of_best(_trials(queue.study, space, folder))
            bar.reach(queue.count()[0])
        finished = _trials(queue.study, space, folder)
    if all(trial.state == "blew up" for trial in finished):
        raise BlowUpError(f"all {len(finished)} trials blew up, the last with: {finished[-1].error}")
    return Study(recipe, space, objective, tuple(finished))


def _pruner(recipe: Recipe) -> BasePruner:
    """Ends trials below the median of the others; settings are written out, as those of samplers."""
    epochs = sum(phase.epochs for phase in recipe.phases)
    return MedianPruner(n_startup_trials=5, n_warmup_steps=epochs // 3 + 1, interval_steps=1, n_min_trials=1)


def judged_recipe(recipe: Recipe, *, objective: str, prune: bool) -> Recipe:
    """Return the recipe as trials run it: judged on validation classes, with looks on the way to prune."""
    recipe.evaluation.check_judged()
    epochs = sum(phase.epochs for phase in recipe.phases)
    every = recipe.evaluation.every or (max(1, epochs // LOOKS) if prune else 0)
    changes: dict[str, Any] = {
        "split": "validation",
        "every": every,
        "clustering": objective in names_of("clustering"),
        "baseline": False,
        "whole_gallery": False,
    }
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=changes)})


def check_steps(recipe: Recipe, folder: Path, folds: int | None) -> None:
    """Raise a ValueError unless a trial has classes enough for the loss, and others to judge it by."""
    for own, _ in fold_runs(recipe, folder, folds):
        if reason := why_not(own.loss.name, own.batches.accumulate, room_to_search(own)):
            raise ValueError(f"{reason} in the search; add classes, or take another loss")


def room_to_search(recipe: Recipe) -> Room:
    """Return what a trial of this recipe trains on."""
    try:
        return room_of(recipe)
    except ValueError as error:
        raise ValueError(f"a search divides the training classes once more: {error}") from None


def claim_folder(folder: Path, recipe: Recipe, space: Mapping[str, Parameter], **rest: Any) -> str:
    """Return the key of the study and write study.json; raise a ValueError if another one is in the folder.

    Args:
        rest: what else decides the value of a trial.
    """
    content = {
        "recipe": write_out(recipe),
        "space": {key: str(parameter) for key, parameter in space.items()},
        "data": load_source(recipe.data.uncached(), recipe.evaluation.plan()).sha256,
        **rest,
    }
    text = json.dumps({**content, "recipe": deciding_settings(content["recipe"])}, sort_keys=True)
    content["key"] = hashlib.sha256(text.encode()).hexdigest()
    file = folder / "study.json"
    if not file.is_file():
        write_json(file, {**content, "rules": RULES})
    _refuse_another(file, content)
    return str(content["key"])


def _refuse_another(file: Path, asked: Mapping[str, Any]) -> None:
    there = json.loads(file.read_text())
    if there["key"] == asked["key"]:
        check_rules(file.parent, there.get("rules", RULES), OF_RUNS)
        return
    difference = difference_of(there["recipe"], asked["recipe"])
    for part in ("space", "data", *asked):
        if not difference and there.get(part) != asked[part]:
            whole = {"study": {part: there.get(part)}}, {"study": {part: asked[part]}}
            difference = difference_of(*whole).removeprefix("study.")
    raise ValueError(
        f"{file.parent} holds a search of another kind: {difference}; choose another folder, or remove the "
        "folder to search again"
    )


def check_search(
    recipe: Recipe,
    space: Mapping[str, Parameter],
    trials: int,
    sampler: str,
    objective: str,
) -> None:
    """Raise a ValueError for what `search` would refuse before it begins."""
    if trials < 1:
        raise ValueError(f"trials must be a number above 0, got {trials}")
    if sampler not in SAMPLERS:
        raise ValueError(f"no sampler is called {sampler!r}; choose from {', '.join(SAMPLERS)}")
    measured = [*recipe.evaluation.measured(), *names_of("clustering")]
    if objective not in measured:
        answer = did_you_mean(objective, measured, f"choose from {', '.join(measured)}")
        raise ValueError(f"objective {objective!r} is not measured; {answer}")
    check_space(recipe, space)


def _attempt(
    trial: optuna.Trial,
    folder: Path,
    recipe: Recipe,
    space: Mapping[str, Parameter],
    *,
    objective: str,
    folds: int | None,
    start: Path | None,
    on_event: OnEvent | None,
) -> float:
    """Return the value of a trial: 0, the worst, if it blows up; any other error ends the search."""
    changed = with_settings(recipe, suggest(trial, space))
    last = sum(phase.epochs for phase in changed.phases)

    def look(epoch: int, value: float) -> None:
        trial.report(value, epoch)
        if epoch < last and trial.should_prune():
            raise optuna.TrialPruned

    how: dict[str, Any] = {"objective": objective, "folds": folds, "start": start, "look": look}
    try:
        with part_of(on_event) as listener:
            return evaluate_trial(changed, folder, on_event=listener, **how)
    except BlowUpError as error:
        trial.set_user_attr("error", str(error))
        return 0.0


def evaluate_trial(
    recipe: Recipe,
    folder: Path,
    *,
    objective: str,
    folds: int | None = None,
    start: Path | None = None,
    look: Callable[[int, float], None] = lambda *_: None,
    on_event: OnEvent | None = None,
) -> float:
    """Return what a recipe reaches, trained once or once per fold; resumes where it was killed."""
    values = []
    for number, (each, place) in enumerate(fold_runs(recipe, folder, folds)):
        own = fit_batches(each)
        run, first = Run(place), None if start is None else start / place.relative_to(folder)
        if first is not None and not run.started():
            run.start_from(Run(first), own)
        with closing(training(own, place, resume=True, on_event=on_event)) as rows:
            for row in rows:
                if number == 0 and objective in row.get("validation", ()):
                    look(row["epoch"], row["validation"][objective])
        values.append(run.result().metrics[objective])
    return statistics.mean(values)


def fold_runs(recipe: Recipe, folder: Path, folds: int | None) -> list[tuple[Recipe, Path]]:
    """Return the recipes that a trial trains, one per fold of the training classes, and their folders."""
    if folds is None:
        return [(recipe, folder)]
    evaluations = [
        recipe.evaluation.model_copy(update={"fold": fold, "folds": folds}) for fold in range(folds)
    ]
    return [
        (recipe.model_copy(update={"evaluation": each}), folder / f"fold-{each.fold}") for each in evaluations
    ]


def _trials(study: optuna.Study, space: Mapping[str, Parameter], folder: Path) -> list[Trial]:
    """The finished trials, best first."""
    found = [_trial(each, space, folder) for each in study.get_trials(deepcopy=False, states=DONE)]
    order = ("complete", "pruned", "blew up")
    return sorted(found, key=lambda trial: (order.index(trial.state), -trial.value, trial.number))


def _trial(trial: FrozenTrial, space: Mapping[str, Parameter], folder: Path) -> Trial:
    error = trial.user_attrs.get("error", "")
    assert trial.value is not None
    return Trial(
        number=trial.number,
        settings={key: each.in_recipe(trial.params[key]) for key, each in space.items()},
        value=trial.value,
        state="blew up" if error else "pruned" if trial.state == TrialState.PRUNED else "complete",
        error=error,
        seconds=_seconds(trial),
        looks=tuple(sorted(trial.intermediate_values.items())),
        folder=trial_folder(folder, trial),
    )


def trial_folder(folder: Path, trial: FrozenTrial) -> Path:
    """Return where a trial's run is; one whose worker died is resumed by another in the same folder."""
    return folder / f"trial-{origin(trial):04d}"


def _seconds(trial: FrozenTrial) -> float:
    assert trial.datetime_complete is not None
    assert trial.datetime_start is not None
    return (trial.datetime_complete - trial.datetime_start).total_seconds()


def _keep_weights_of_best(trials: Sequence[Trial]) -> None:
    """Remove the weights of all finished trials but the best: a hundred of them may not fit on a disk."""
    for trial in trials[1:]:
        for folder in (trial.folder, *trial.folder.glob("fold-*")):
            Run(folder).drop_weights()
