import pytest
from support.results import finished_run

from softwarp.runs.result import Counts


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("{}", "schema|name"),
        ('{"schema": 2}', "schema"),
        ("[1, 2", "JSON"),
        ('{"rows": []}', "rows|name"),
    ],
)
def test_a_result_of_another_shape_is_one_line(tmp_path, content, cause):
    run = finished_run(tmp_path)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ValueError, match=rf"result\.json.*({cause}).*--fresh"):
        run.result()


def test_a_shipped_model_has_the_figures_of_the_one_that_was_measured_and_says_so(tmp_path):
    held_out = finished_run(tmp_path / "run").result()
    whole = {"held_out": held_out, "metrics": {}, "images": Counts(train=50, evaluated=0)}
    shipped = held_out.model_copy(update={**whole, "classes": Counts(train=12, evaluated=0)})
    assert (shipped.measured, held_out.measured, held_out.caveat) == (held_out, held_out, "")
    assert f"measured on {held_out.classes.evaluated} held-out classes" in shipped.caveat
    assert shipped.caveat.endswith("this model has seen all 12 classes")
    assert "MAP@R" in repr(shipped)
    closed = shipped.model_copy(update={"held_out": held_out.model_copy(update={"closed": True})})
    assert f"measured on {held_out.images.evaluated} held-out images" in closed.caveat
    assert closed.caveat.endswith("this model has seen all 50 images")
