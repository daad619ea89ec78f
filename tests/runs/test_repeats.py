import numpy as np
import pytest
from scipy import stats
from support.results import finished_run, result

from softwarp.runs.repeats import (
    read_repeats,
    simultaneous_intervals,
    summarise,
    t_interval,
    write_repeats,
)


def test_mean_deviation_and_interval_are_those_of_scipy():
    values = [0.61, 0.64, 0.60, 0.66]
    repeats = summarise([result(metrics={"map@r": value}) for value in values])
    assert repeats.mean["map@r"] == pytest.approx(sum(values) / 4)
    assert repeats.deviation["map@r"] == pytest.approx(stats.tstd(values))
    expected = stats.t.interval(0.95, 3, loc=repeats.mean["map@r"], scale=stats.sem(values))
    assert repeats.interval["map@r"] == pytest.approx(expected)
    assert t_interval(values, level=0.9)[0] > repeats.interval["map@r"][0]


def test_one_run_has_a_mean_and_no_deviation():
    repeats = summarise([result()])
    assert repeats.mean["recall@1"] == 0.5
    assert repeats.deviation == repeats.interval == {}


def test_a_metric_that_one_run_lacks_is_left_out():
    repeats = summarise([result(), result(metrics={"recall@1": 0.7})])
    assert set(repeats.mean) == {"recall@1"}
    assert repeats.baseline == {}


def test_the_baseline_is_averaged():
    runs = [result(baseline={"map@r": value}) for value in (0.2, 0.4)]
    assert summarise(runs).baseline == {"map@r": pytest.approx(0.3)}


def test_a_folder_of_seeds_and_one_of_a_run_are_read_alike(tmp_path):
    repeats = summarise([result(seed=0), result(seed=1)])
    write_repeats(tmp_path, repeats)
    assert read_repeats(tmp_path) == repeats
    finished_run(tmp_path / "run")
    assert read_repeats(tmp_path / "run") == summarise([result()])
    (tmp_path / "seeds.json").write_text('{"seeds": 2, "mean": {}}')
    with pytest.raises(ValueError, match=r"seeds\.json"):
        read_repeats(tmp_path)


def test_simultaneous_intervals_of_one_sample_or_of_copies_are_student_s():
    values = [0.61, 0.64, 0.60, 0.66]
    for copies in (1, 3):
        for interval in simultaneous_intervals(np.array([values] * copies)):
            assert interval == pytest.approx(t_interval(values), rel=0.01)


def test_simultaneous_intervals_hold_whichever_sample_is_picked():
    """Of eight samples of noise one or another seems to differ from zero; these intervals allow for it."""
    generator = np.random.default_rng(1)
    draws = generator.standard_normal((300, 8, 12))
    missed = [any(low > 0 or high < 0 for low, high in simultaneous_intervals(draw)) for draw in draws]
    plainly = [any(low > 0 or high < 0 for low, high in map(t_interval, draw.tolist())) for draw in draws]
    assert sum(missed) / 300 < 0.09
    assert sum(plainly) / 300 > 0.2


def test_a_sample_without_scatter_is_its_mean_and_widens_nothing():
    constant, varied = [0.5] * 4, [0.1, 0.2, 0.3, 0.4]
    first, second = simultaneous_intervals(np.array([constant, varied]))
    assert first == (0.5, 0.5)
    assert second == pytest.approx(t_interval(varied))
