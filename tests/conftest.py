"""What tests share: a profile of hypothesis, and quick runs of the demo."""

import pytest
from hypothesis import settings

settings.register_profile("softwarp", deadline=None)  # timings belong to benchmarks
settings.load_profile("softwarp")


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The folder and result of one quick demo."""
    from softwarp.studies.demo import run_demo

    folder = tmp_path_factory.mktemp("demo")
    return folder, run_demo(folder, quick=True)
