"""The trials of a search, shared by its workers: in a journal file for one machine, or in a database."""

import errno
import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from softwarp.files import is_locked, locked_file

HEARTBEAT = 60  # seconds between the signs of life of a worker in a database
GRACE = 180  # seconds without one before its trial is returned to the queue
POLL = 1.0  # seconds that a worker waits for the others before it looks again
ATTEMPTS = 10  # at making the tables of a new database, which other workers may be making
JOURNAL = "journal.log"
WORKER = "worker"  # attribute of a trial: who holds it
FULL = (errno.ENOSPC, errno.EDQUOT)
DONE = (TrialState.COMPLETE, TrialState.PRUNED)


class SurplusError(Exception):
    """More trials were taken than asked for; the last ones are given back."""


class Journal(JournalFileBackend):
    """optuna's journal file with a lock that ends with its process; a line that was cut off is removed."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        data = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with locked_file(self.path), self.path.open("r+b", buffering=0) as file:
            size = _whole_lines(self.path)
            file.truncate(size)
            file.seek(size)
            try:
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError as error:
                file.truncate(size)
                raise OSError(error.errno, error.strerror, str(self.path)) from None


def _whole_lines(path: Path) -> int:
    """Return the length of the file without a last line that has no end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                return file.read().rfind(b"\n") + 1
    return size


@contextmanager
def named_full_disk(folder: Path) -> Iterator[None]:
    """Say of a full disk what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            f"{error.filename or folder} cannot be written ({error.strerror}); free disk space, then give "
            "the same command again: finished trials are kept"
        ) from None


class TrialQueue:
    """A study and this worker's place in it.

    With a journal, each worker holds a lock file that dies with it: a running trial without a living worker
    is returned to the queue. With a database optuna's heartbeat does that.
    """

    def __init__(self, name: str, folder: Path, storage: str | None, **study: Any) -> None:
        self.folder, self.shared, self.me = folder / "workers", storage is not None, uuid.uuid4().hex
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.retry = RetryHeartbeatStaleTrialCallback()
            kept = JournalStorage(Journal(folder / JOURNAL)) if storage is None else self._database(storage)
            self.study = optuna.create_study(
                study_name=name, storage=kept, direction="maximize", load_if_exists=True, **study
            )

    def _database(self, url: str) -> BaseStorage:
        try:
            from sqlalchemy.exc import IntegrityError, ProgrammingError

            for _ in range(ATTEMPTS):
                try:
                    return RDBStorage(
                        with_driver(url),
                        heartbeat_interval=HEARTBEAT,
                        grace_period=GRACE,
                        heartbeat_stale_trial_callback=self.retry,
                    )
                except (IntegrityError, ProgrammingError) as error:  # another worker makes the same tables
                    reason = error
                    time.sleep(POLL)
            raise reason
        except ImportError:
            raise ValueError(
                f"the database {without_password(url)} needs a driver: pip install 'softwarp[postgres]'"
            ) from None
        except Exception as error:  # sqlalchemy's and the driver's own
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise OSError(
                f"the database {without_password(url)} cannot be used ({lines[0]}); start the server, or "
                "correct address, user, password and database"
            ) from None

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be one of the workers; a database that no longer answers is an OSError."""
        if self.shared:
            from sqlalchemy.exc import SQLAlchemyError

            try:
                yield
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                raise OSError(
                    f"the database no longer answers ({str(error).splitlines()[0]}); give the "
                    "same command again when it does: finished trials are kept"
                ) from None
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        own = self.folder / self.me
        try:
            with locked_file(own):
                yield
        finally:
            own.unlink(missing_ok=True)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep other workers from taking a trial; the database needs no turns (see `is_surplus`)."""
        if self.shared:
            yield
            return
        with locked_file(self.folder / "turn"):
            yield

    def take_back(self) -> None:
        """Return trials of workers that died to the queue."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)
        if not self.shared:
            for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                worker = trial.user_attrs.get(WORKER)
                if worker is None or not is_locked(self.folder / worker):
                    self._return(trial)

    def _return(self, trial: FrozenTrial) -> None:
        """Queue a trial again, then call it failed; a worker may die between the two."""
        others = self.study.get_trials(deepcopy=False)
        if not any(other.system_attrs.get("retry_history", [])[-1:] == [trial.number] for other in others):
            self.retry(self.study, deepcopy(trial))  # it changes what it is given
        self.study.tell(trial.number, state=TrialState.FAIL)

    def fill(self, points: list[dict[str, Any]]) -> int:
        """Queue points, unless they are there; return how many they are.

        Workers of a database may queue a point at the same moment: the second one is surplus.
        """
        with self.turn():
            for point in points:
                self.study.enqueue_trial(point, skip_if_exists=True)
        return len(points)

    def work(self, attempt: Callable[[optuna.Trial], float], trials: int) -> None:
        """Take the next trial and tell what it reached; wait a moment if others have taken all.

        Args:
            attempt: returns the value of a trial.
            trials: how many are asked for.
        """
        judged = False
        with ExitStack() as turn:
            turn.enter_context(self.turn())
            self.take_back()
            if sum(self.count()) >= trials and not self.waiting():
                turn.close()
                time.sleep(POLL)
                return

            def objective(trial: optuna.Trial) -> float:
                nonlocal judged
                trial.set_user_attr(WORKER, self.me)
                turn.close()
                try:
                    if self.is_surplus(trial.number, trials):
                        raise SurplusError
                    value = attempt(trial)
                except (SurplusError, optuna.TrialPruned, UpdateFinishedTrialError):
                    judged = True
                    raise
                except BaseException:
                    self.put_back(trial)
                    raise
                judged = True
                return value

            try:
                self.study.optimize(objective, n_trials=1, catch=(SurplusError,))
            except (ValueError, AssertionError, UpdateFinishedTrialError):
                if not judged:  # else others took this worker for dead, and its trial away: theirs counts
                    raise

    def is_surplus(self, number: int, trials: int) -> bool:
        """Return whether a trial is one too many: those before it are enough, or it was queued twice.

        The storage numbers trials one by one, so all workers come to the same answer without a lock.
        """
        *before, own = self.study.get_trials(deepcopy=False)[: number + 1]
        alive = [each for each in before if each.state != TrialState.FAIL]
        if len(alive) >= trials:
            return True
        point = own.system_attrs.get("fixed_params")
        return point is not None and any(each.system_attrs.get("fixed_params") == point for each in alive)

    def put_back(self, trial: optuna.Trial) -> None:
        """Queue a trial that this worker gives up; optuna then marks the first one as failed."""
        self.retry(self.study, self.study.trials[trial.number])

    def count(self) -> tuple[int, int]:
        """Return how many trials are finished, and how many more are running or waiting."""
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        done = sum(state in DONE for state in states)
        return done, sum(state != TrialState.FAIL for state in states) - done

    def waiting(self) -> bool:
        return bool(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))


def with_driver(url: str) -> str:
    """Return the address with the driver that `softwarp[postgres]` installs.

    >>> with_driver("postgresql://me@host/db")
    'postgresql+psycopg://me@host/db'
    """
    for name in ("postgresql://", "postgres://"):
        if url.startswith(name):
            return "postgresql+psycopg://" + url.removeprefix(name)
    return url


def without_password(url: str) -> str:
    """Return an address that may be shown.

    >>> without_password("postgresql://me:secret@host/db")
    'postgresql://me:***@host/db'
    """
    head, at, rest = url.rpartition("@")
    scheme, slashes, who = head.partition("://")
    return f"{scheme}{slashes}{who.partition(':')[0]}{':***' * (':' in who)}{at}{rest}" if at else url
