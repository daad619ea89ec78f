"""Signals that ask training to stop."""

import multiprocessing
import os
import signal
import time

import torch

from softwarp.training.stops import asked_to_stop


def test_a_signal_is_heard_before_the_batch_ends():
    heard = []
    with asked_to_stop(torch.device("cpu"), heard.append) as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 30
        while not heard and time.monotonic() < end:  # nobody asks whether to stop meanwhile
            time.sleep(0.01)
        assert heard == [1]
        assert asked()
    assert heard == [1]


def test_what_comes_after_a_stop_comes_after_it_was_heard():
    heard = []
    with asked_to_stop(torch.device("cpu"), heard.append):
        signal.raise_signal(signal.SIGINT)
    assert heard == [1]


def test_a_signal_of_a_worker_is_not_one_to_stop():
    heard = []
    before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        with asked_to_stop(torch.device("cpu"), heard.append) as asked:
            signal.raise_signal(signal.SIGCHLD)
            assert not asked()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert heard == []


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
