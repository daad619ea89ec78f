"""A small index, and its application."""

import pytest
from support.tiny_index import glyph_index


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    return glyph_index(tmp_path_factory.mktemp("served"))
