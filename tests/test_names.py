from softwarp.names import did_you_mean


def test_the_nearest_names_are_asked_for_and_otherwise_what_there_is():
    known = {"alpha": 1, "beta": 2}
    assert did_you_mean("aplha", known, "none") == "did you mean alpha?"
    assert did_you_mean("xyz", known, "it has alpha, beta") == "it has alpha, beta"
    assert did_you_mean("xyz", known) == ""
    names = iter(["run-1", "run-2"])
    assert did_you_mean("run-3", names, most=2) == "did you mean run-2 or run-1?"
