import pytest
from support.results import finished_run


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
