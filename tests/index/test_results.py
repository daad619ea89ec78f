"""What an index answers shows itself, and asks its table once."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.tiny_index import glyph_index, vector_index

from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.serve import lookup


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return glyph_index(tmp_path_factory.mktemp("results"))


def statements(index, work):
    """The statements that SQLite runs."""
    told = []
    index.store.table._connection.set_trace_callback(told.append)
    try:
        work()
    finally:
        index.store.table._connection.set_trace_callback(None)
    return told


def test_a_search_lists_paths_labels_and_distances_by_query(index):
    found = index.search([index.file(item) for item in index.items[:2]], k=3)
    ids, distances = index.nearest(index.vectors[:2], 3)
    assert (len(found), len(list(found)), len(found.queries)) == (6, 6, 2)
    assert found.ids == ids.tolist()
    np.testing.assert_allclose(found.distances, distances, atol=1e-4)
    assert found.paths == [[index.item(number).path for number in row] for row in found.ids]
    assert found.labels == [[index.item(number).label for number in row] for row in found.ids]
    assert [(each.query, each.rank) for each in found] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert found[3].path == index.items[1].path


@pytest.mark.parametrize(("queries", "k"), [(1, 1), (1, 10), (7, 10)])
def test_a_search_is_one_statement(index, queries, k):
    vectors = index.vectors[:queries]
    assert len(statements(index, lambda: index.search(vectors, k))) == 1
    assert statements(index, lambda: index.nearest(vectors, k)) == []


def test_a_page_of_hits_is_one_statement(index):
    def page():
        lookup.find_nearest(index, index.vectors[0], 10, {}, digest="")

    assert len(statements(index, page)) == 1
    index.items  # noqa: B018  # which an index reads once
    assert len(statements(index, index.clusters)) == 1
    assert len(statements(index, lambda: index.classify(index.vectors[:9], 5))) == 1


def test_every_answer_is_a_table_in_a_terminal_a_notebook_and_pandas(index, monkeypatch):
    for found, column in (
        (index.search(index.vectors[:2]), "rank"),
        (index.duplicates(threshold=100.0), "group"),
        (index.clusters(), "group"),
        (index.outliers(), "suggested"),
        (index.classify(index.vectors[:3]), "confidence"),
    ):
        assert len(found) > 0
        with monkeypatch.context() as patch:  # a pandas that only keeps what it is given
            patch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
            rows = found.to_pandas()
        assert len(rows) == len(found)
        assert all(column in row for row in rows)
        lines = repr(found).splitlines()
        assert lines[0].startswith(f"{type(found).__name__}: {len(found):,} row")
        assert column in lines[1].split()
        assert len(lines) == 2 + min(len(found), 10) + (len(found) > 10)
        page = found._repr_html_()
        assert page.count("<tr>") == 1 + min(len(found), 50)
        assert page.count("data:image/jpeg;base64,") == (
            min(len(found), 50) if hasattr(found[0], "id") else 0
        )


def test_names_cannot_write_into_the_page(tmp_path):
    index = vector_index(tmp_path, np.eye(2, dtype=np.float32))
    index.append(np.ones((1, 2)), [NewImage("<script>\x1b\n.jpg", "<b>")])
    found = index.search(np.ones(2), 1)
    assert "&lt;script&gt;" in found._repr_html_()
    assert "<b>" not in found._repr_html_()
    assert "\x1b" not in repr(found)
    assert len(repr(found).splitlines()) == 3


def test_a_missing_pandas_is_told(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        index.search(index.vectors[0]).to_pandas()


def test_nothing_found_says_so(tmp_path):
    found = Index.create(tmp_path, dimensions=2, distance="euclidean").search(np.ones(2))
    assert (len(found), found.ids) == (0, [[]])
    assert "nothing found" in repr(found)
    assert "<table>" in found._repr_html_()
