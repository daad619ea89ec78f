"""The page in a real browser: search, walk, filter, map, lists; and nothing in its console."""

import csv
import time

import numpy as np
import pytest
from support.browser import chromium, in_browser
from support.tiny_index import glyph_index
from support.tiny_server import serving

from softwarp.index.corrections import Corrections
from softwarp.serve.app import create_app

pytestmark = in_browser


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return glyph_index(tmp_path_factory.mktemp("browsed"))


@pytest.fixture(scope="module")
def address(served):
    with serving(create_app(served)) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, address):
    """The page, ready; what its console says at the end is an error, and so is any request elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    page, problems = context.new_page(), []
    page.on("console", lambda each: problems.append(each.text) if each.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda each: each.url.startswith((address, "blob:")) or problems.append(each.url))
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert problems == []


def captions(page):
    return page.locator("#results .tile img").evaluate_all("images => images.map((image) => image.title)")


def until(page, expression):
    """Wait; playwright's own way evaluates text inside the page, which its security policy forbids."""
    end = time.monotonic() + 30
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def drawn(page):
    return page.locator("#canvas[data-drawn]").evaluate(
        "canvas => [Number(canvas.dataset.scale), Number(canvas.dataset.drawn)]"
    )


def test_search_by_upload_walk_on_and_filter(page, served):
    page.set_input_files("#file", served.root / "U+0042" / "DejaVuSans.png")
    page.wait_for_selector("#votes li")
    assert captions(page)[0] == "U+0042/DejaVuSans.png"
    told = page.locator("#results .tile figcaption span").all_inner_texts()
    assert [place for place, text in enumerate(told) if text == "same file"] == [0]
    assert page.locator("#votes li").count() == 6
    assert all(row.endswith("of 23") for row in page.locator("#votes .row").all_inner_texts())
    page.click("#results .tile:nth-child(3) > button")
    page.wait_for_selector("#facts:not([hidden])")
    walked = int(page.url.rpartition("/")[2])
    assert served.item(walked).path in page.locator("#facts").inner_text()
    assert served.item(walked).path not in captions(page)
    page.fill("#class", "U+0043")
    until(page, "document.querySelectorAll('#results .tile').length <= 4")
    assert {name.partition("/")[0] for name in captions(page)} == {"U+0043"}
    page.fill("#class", "")
    page.go_back()
    until(page, "document.querySelector('#facts').hidden")  # the upload again
    assert captions(page)[0] == "U+0042/DejaVuSans.png"


def test_images_beyond_a_distance_are_left_out(page):
    page.goto(f"{page.url}#/image/8")
    page.wait_for_selector("#reach:not([hidden])")
    told = [float(each) for each in page.locator("#results .tile figcaption span").all_inner_texts()]
    assert len(told) == 23
    page.fill("#within", str(told[5] + 0.001))
    until(page, "document.querySelectorAll('#results .tile').length < 23")
    assert page.locator("#results .tile").count() == sum(away <= told[5] + 0.0015 for away in told)
    page.fill("#within", "0.001")
    page.wait_for_selector("#results .empty")
    said = page.locator("#results .empty").inner_text()
    assert said == f"Nothing within 0.001: the nearest is {told[0]:.3f} away."
    page.fill("#within", "")
    until(page, "document.querySelectorAll('#results .tile').length === 23")


def test_a_dropped_file_that_is_no_image_is_explained(browser, address, served):
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    page.set_input_files("#file", served.root / "U+0042" / "DejaVuSans.png")
    page.wait_for_selector("#votes li")
    page.evaluate(
        """() => { const box = new DataTransfer();
        box.items.add(new File([new Uint8Array(99)], "note.bmp", {type: "image/bmp"}));
        const drop = new DragEvent("drop", {dataTransfer: box, bubbles: true, cancelable: true});
        document.body.dispatchEvent(drop); }"""
    )
    page.wait_for_selector("#message:not([hidden])")
    assert "JPEG" in page.locator("#message").inner_text()
    assert captions(page) == []  # those of the query before
    assert page.locator("#heading").inner_text() == ""
    for each in ("#votes", "#query", "#more"):
        assert page.locator(each).is_hidden()
    page.close()


def test_a_selection_is_downloaded(page):
    for place in (2, 5):
        page.check(f"#results .tile:nth-child({place}) .mark input", force=True)
    with page.expect_download() as download:
        page.click("#download")
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert [row["path"] for row in rows] == [captions(page)[1], captions(page)[4]]
    page.click("#clear")
    assert page.locator("#selection").is_hidden()


def test_the_map_draws_zooms_and_leads_on(page):
    page.click("nav [data-view=map]")
    page.wait_for_selector("#canvas[data-drawn]", timeout=60_000)
    scale, count = drawn(page)
    assert 6 <= count <= 24
    until(page, COLOURFUL)
    page.mouse.move(640, 420)
    page.mouse.wheel(0, -500)
    until(page, f"Number(document.querySelector('#canvas').dataset.scale) > {1.5 * scale}")
    page.click("#whole")
    until(page, f"Number(document.querySelector('#canvas').dataset.scale) <= {scale}")
    page.keyboard.down("Shift")
    page.mouse.move(1, 56)
    page.mouse.down()
    page.mouse.move(1200, 798, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert page.locator("#chosen").inner_text() == "24 selected"
    page.fill("#class", "U+0041")
    until(page, "Number(document.querySelector('#canvas').dataset.drawn) <= 4")
    page.goto(page.url.partition("#")[0] + "#/map/8")  # asks for that image, whatever the filter
    page.wait_for_selector("#card a")
    assert "U+0042" in page.locator("#card").inner_text()
    page.click("#card a >> text=Similar")
    page.wait_for_selector("#facts:not([hidden])")


# Whether thumbnails have arrived: what is on the canvas has many colours.
COLOURFUL = """() => { const canvas = document.querySelector("#canvas");
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size > 50; }"""


def test_lists_are_walked_through_by_keyboard(page):
    page.click("nav [data-view=outliers]")
    page.wait_for_selector("#outliers .where")
    first = page.locator("#outliers .path").inner_text()
    assert page.locator("#outliers .where").inner_text().startswith("1 of")
    page.keyboard.press("x")
    assert page.locator("#chosen").inner_text() == "1 selected"
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#outliers .where').textContent.startsWith('2 of')")
    assert page.locator("#outliers .path").inner_text() != first
    page.keyboard.press("s")
    page.wait_for_selector("#facts:not([hidden])")


def test_a_label_is_corrected_by_click_keyboard_and_typing(page, served):
    def corrected():
        return page.locator("#outliers .relabel p").inner_text()

    page.goto(page.url.partition("#")[0] + "#/outliers")
    page.wait_for_selector("#outliers .relabel")
    suggested, path = (page.locator(f"#outliers {each}").inner_text() for each in (".verdict b", ".path"))
    page.click("#outliers .accept")
    page.wait_for_selector("#outliers .relabel p")
    assert corrected() == f"✓ relabelled as {suggested}"
    assert page.evaluate("document.activeElement.textContent") == "Undo"
    until(page, "document.querySelector('#outliers .pending').textContent.includes('index apply')")
    assert Corrections(served.folder).read() == {path: suggested}
    page.keyboard.press("Enter")  # on Undo
    page.wait_for_selector("#outliers .accept")
    until(page, "document.querySelector('#outliers .pending').hidden")
    assert Corrections(served.folder).read() == {}
    page.fill("#outliers .relabel input", "a new <b>class")
    page.keyboard.press("Enter")
    page.wait_for_selector("#outliers .relabel p")
    assert corrected() == "✓ relabelled as a new <b>class"
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#outliers .where').textContent.startsWith('2 of')")
    assert page.locator("#classes option[value='a new <b>class']").count() == 1
    page.keyboard.press("a")
    page.wait_for_selector("#outliers .relabel p")
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('#outliers .where').textContent.startsWith('1 of')")
    assert corrected() == "✓ relabelled as a new <b>class"
    assert len(Corrections(served.folder).read()) == 2
    page.reload()
    page.wait_for_selector("#outliers .relabel p")
    assert corrected() == "✓ relabelled as a new <b>class"
    page.keyboard.press("u")
    page.wait_for_selector("#outliers .accept")
    until(page, "document.querySelector('#outliers .pending').textContent.startsWith('1 correction is')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(browser, address, scheme):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme=scheme, is_mobile=True, has_touch=True
    )
    page = context.new_page()
    for view in ("", "#/image/3", "#/map", "#/outliers", "api"):
        page.goto(address + view)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(address)
    page.wait_for_selector(".camera", state="visible")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = np.mean([int(part) for part in paper[4:-1].split(",")])
    assert (brightness > 128) == (scheme == "light")
    context.close()


def test_a_token_is_taken_from_the_address_once(browser, served):
    with serving(create_app(served, token="a-token-of-the-tests")) as port:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token=a-token-of-the-tests")
        page.wait_for_selector("body[data-ready]")
        assert "token" not in page.url
        assert page.locator("#results .tile").count() == 24
        page.close()
