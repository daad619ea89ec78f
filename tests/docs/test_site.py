"""The site builds without a warning, every page is in it, and every link inside leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import softwarp

ROOT = Path(__file__).parents[2]


def build(docs, site):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", docs, site]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("furo", reason="needs pip install sphinx furo myst-parser")
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "docs", folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_listed_in_the_index():
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert len(pages) > 10
    listed = (ROOT / "docs" / "index.md").read_text().splitlines()
    assert [page for page in pages - {"index"} if page not in listed] == []
    assert not pages & {"search", "genindex", "py-modindex"}  # Sphinx has pages of these names


def test_every_link_inside_leads_somewhere(site):
    found = 0
    for page in site.glob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = page.parent / (path.partition("?")[0] or page.name)
            assert target.is_file(), f"{page.name}: {link}"
            assert not anchor or f'id="{anchor}"' in target.read_text(), f"{page.name}: {link}"
            found += 1
    assert found > 200


def test_the_api_is_made_from_docstrings(site):
    text = (site / "api.html").read_text()
    names = {*softwarp.__all__, "metrics.retrieval_metrics", "export.formats.to_onnx"}
    names -= {"LOSSES", "losses", "metrics"}  # a table and two modules, which have pages of their own
    assert len(names) > 10
    assert [name for name in names if f'id="softwarp.{name}"' not in text] == []
