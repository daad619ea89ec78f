import pytest
from scipy import stats
from support.results import finished_run, result

from softwarp.runs.repeats import read_repeats, summarise, t_interval, write_repeats


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
