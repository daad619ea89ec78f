"""Workers share a search and some are killed mid-trial: `search_workers.py FOLDER WORKERS KILLS [STORAGE]`.

All are children of one process, which has loaded everything once. A trial takes a moment and is a formula.
Fails unless the search ends with exactly the trials asked for, those finished before the kill unchanged.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from optuna.trial import TrialState

from softwarp.tuning import search as tune
from softwarp.tuning import trial_queue
from support.tiny_runs import PHASE, tiny

RECIPE = tiny(phases=[PHASE])
SPACE = {"phases.0.learning_rate": tune.Parameter("log", 1e-4, 1e-1)}
TRIALS = 12
SECONDS = 0.6  # that a trial takes


def formula(recipe, folder, **_):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "began").write_text(str(os.getpid()))
    time.sleep(SECONDS)
    (folder / "ended").write_text(str(os.getpid()))
    return 1 - abs(recipe.phases[0].learning_rate - 0.01)


def search(folder, storage):
    return tune.search(RECIPE, folder, trials=TRIALS, space=SPACE, sampler="random", storage=storage)


def child(folder, storage):
    number = os.fork()
    if number == 0:
        try:
            assert len(search(folder, storage).trials) == TRIALS
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return number


def in_progress(folder):
    """Process and trial of every training that began and has not ended."""
    began = {int(path.read_text() or 0): path.parent.name for path in folder.glob("trial-*/began")}
    ended = {path.parent.name for path in folder.glob("trial-*/ended")}
    return {process: trial for process, trial in began.items() if process and trial not in ended}


def kill_mid_trial(process, folder):
    """Kill the process, unless its trial ended in the meantime: it is stopped first, to be sure."""
    os.kill(process, signal.SIGSTOP)
    os.waitpid(process, os.WUNTRACED)
    if (folder / "ended").exists():
        os.kill(process, signal.SIGCONT)
        return False
    os.kill(process, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1])
    return True


def finished(study):
    return {trial.number: (trial.params, trial.value) for trial in study.trials if trial.value is not None}


def main(folder: Path, workers: int, kills: int, storage: str | None = None) -> None:
    torch.set_num_threads(1)
    trial_queue.HEARTBEAT, trial_queue.GRACE, trial_queue.POLL = 1, 4, 0.1
    tune.evaluate_trial = formula
    living = [child(folder, storage) for _ in range(workers)]
    while len(list(folder.glob("trial-*/ended"))) < 2:
        time.sleep(0.05)
    killed = []
    while len(killed) < kills:
        for process, trial in in_progress(folder).items():
            if process in living and len(killed) < kills and kill_mid_trial(process, folder / trial):
                living.remove(process)
                killed.append(trial)
    assert len(living) == workers - kills
    living = living or [child(folder, storage)]
    intact = finished(open_study(folder, storage))
    assert all(os.waitpid(process, 0)[1] == 0 for process in living), "a worker that lived on failed"
    study = open_study(folder, storage)
    states = [trial.state for trial in study.trials]
    assert len(finished(study)) == TRIALS == states.count(TrialState.COMPLETE), states
    assert TrialState.RUNNING not in states
    assert intact.items() <= finished(study).items()
    assert len({str(params) for params, _ in finished(study).values()}) == TRIALS, "one was drawn twice"
    for trial in killed:
        assert study.trials[int(trial[-4:])].state == TrialState.FAIL
        assert (folder / trial / "ended").exists(), "nobody finished a dead worker's trial"
    print(f"{len(killed)} killed mid-trial, {states.count(TrialState.FAIL)} returned")


def open_study(folder, storage):
    import optuna

    if storage is None:
        kept = optuna.storages.JournalStorage(trial_queue.Journal(folder / trial_queue.JOURNAL))
    else:
        kept = optuna.storages.RDBStorage(trial_queue.with_driver(storage))
    (name,) = optuna.get_all_study_names(kept)
    return optuna.load_study(study_name=name, storage=kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
