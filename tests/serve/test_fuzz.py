"""Whatever the OpenAPI description allows, and much that it does not, is answered without a 500."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from softwarp.serve.app import create_app


@pytest.mark.parametrize("examples", [6, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_request_breaks_it(index, mode, examples):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from schemathesis.generation import GenerationMode

    home = {"host": "localhost"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(index), headers=home)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 9
    statuses = set()
    for operation in operations:
        if mode == "negative" and not (operation.query or operation.path_parameters or operation.body):
            continue  # there is no wrong way to ask

        @settings(
            max_examples=examples,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
        def ask(case):
            response = case.call(headers=home)
            assert response.status_code < 500, (case.method, case.formatted_path, case.body)
            documented = operation.definition.raw["responses"]  # noqa: B023
            assert str(response.status_code) in {*documented, "405"}
            statuses.add(response.status_code)

        ask()
    assert statuses & ({200} if mode == "positive" else {422})
