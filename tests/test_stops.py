"""Signals that ask training to stop."""

import multiprocessing
import os
import signal
import time

import torch

from softwarp.stops import asked_to_stop


def test_a_signal_is_acknowledged_once_and_before_the_batch_ends(capfd):
    with asked_to_stop(torch.device("cpu")) as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        told, end = "", time.monotonic() + 30
        while "Ctrl-C again" not in told and time.monotonic() < end:  # nobody asks whether to stop meanwhile
            time.sleep(0.01)
            told += capfd.readouterr().err
        assert "Ctrl-C again" in told
        assert asked()
    assert (told + capfd.readouterr().err).count("\n") == 1


def test_what_comes_after_a_stop_is_printed_after_its_line(capfd):
    with asked_to_stop(torch.device("cpu")):
        signal.raise_signal(signal.SIGINT)
    os.write(2, b"stopped")
    assert capfd.readouterr().err.endswith("at once\nstopped")


def test_a_signal_of_a_worker_is_not_one_to_stop(capfd):
    before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        with asked_to_stop(torch.device("cpu")) as asked:
            signal.raise_signal(signal.SIGCHLD)
            assert not asked()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert capfd.readouterr().err == ""


def linger(ended):
    time.sleep(3)
    ended.set()


def test_a_worker_that_outlives_training_does_not_hold_it_up():
    forked = multiprocessing.get_context("fork")
    ended = forked.Event()
    with asked_to_stop(torch.device("cpu")):
        worker = forked.Process(target=linger, args=(ended,))
        worker.start()
    assert not ended.is_set()
    worker.kill()
    worker.join()
