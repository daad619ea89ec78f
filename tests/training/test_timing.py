import time

import pytest

from softwarp.training.timing import seconds_of


@pytest.mark.parametrize(("times", "before"), [(2, 1), (1, 0), (4, 2)])
def test_the_mean_is_of_the_calls_after_the_first_ones(times, before, monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def act():
        calls.append(clock[0])
        clock[0] += 100.0 if len(calls) <= before else 3.0

    assert seconds_of(act, times=times, before=before) == 3.0
    assert len(calls) == times + before
