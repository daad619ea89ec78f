"""The explorer: its mathematics is Python's, and it can be used by mouse, finger and keyboard."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.browser import chromium, in_browser
from typer.testing import CliRunner

import softwarp.explorer
from softwarp.cli import app
from softwarp.explorer import SCRIPTS, page
from softwarp.losses.function_family import power_loss, scaled_loss
from softwarp.losses.warped_softmax import softmax_loss, warped_softmax_loss
from softwarp.studies.planes import felt

WARP = ("alpha", "k1", "k2", "delta")


def test_the_page_is_one_file_of_plain_javascript():
    folder = Path(softwarp.explorer.__file__).parent
    scripts = [folder / name for name in SCRIPTS]
    assert sorted(scripts) == sorted(folder.glob("*.js"))
    assert sum(len(path.read_text().splitlines()) for path in scripts) < 600
    text = page()
    assert not re.search(
        r"(?:src|href)=\"(?!data:)[^\"]+\"|https?://|@import|/\* (?:scripts|page\.css)", text
    )
    assert all(path.read_text() in text for path in [*scripts, folder / "page.css"])


def test_the_command_writes_or_opens_the_page(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "cache"))
    assert CliRunner().invoke(app, ["explore", "--write", str(tmp_path / "new" / "page.html")]).exit_code == 0
    assert (tmp_path / "new" / "page.html").read_text() == page()
    assert opened == []
    assert CliRunner().invoke(app, ["explore"]).exit_code == 0
    assert opened == [(tmp_path / "cache" / "explorer.html").as_uri()]
    assert (tmp_path / "cache" / "explorer.html").read_text() == page()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    path.write_text(page(), encoding="utf-8")
    return path.as_uri()


def opened(browser, address, **options):
    """The page, drawn; and a list of what its console says or what it asks of the network."""
    context = browser.new_context(
        **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
    )
    tab, problems = context.new_page(), []
    tab.on("console", lambda each: problems.append(each.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    allowed = (address.partition("#")[0], "data:")
    tab.on("request", lambda each: each.url.startswith(allowed) or problems.append(each.url))
    tab.goto(address)
    tab.wait_for_selector("#reading b")
    return tab, problems


@pytest.fixture
def tab(browser, address):
    tab, problems = opened(browser, address)
    yield tab
    tab.context.close()
    assert problems == []


# For settings with their points: value, what is felt, and the forces on the embedding and on all proxies.
READ = """cases => cases.map(({points, ...given}) => {
  const {settings, modelOf, lossAt, forceAt} = window.explorer;
  Object.assign(settings, given);
  const model = modelOf();
  return points.map(([x, y]) => {
    const onProxies = new Float64Array(2 * model.proxies.length);
    const force = forceAt(model, given.own, x, y, onProxies);
    const losses = ["value", "felt"].map((kind) => lossAt(model, given.own, x, y, kind));
    return [...losses, force.x, force.y, ...onProxies];
  });
})"""


def drawn_case(generator, function):
    count = int(generator.integers(2, 7))
    proxies = generator.normal(0, 3, (count, 2))
    own = int(generator.integers(count))
    points = [*generator.normal(0, 4, (8, 2)), proxies[own], proxies[own - 1], [60.0, -45.0]]
    low, high = (0.0, 0.1, 0.5, 0.0, 0.3, 0.3, 0.1), (6.0, 1.4, 2.5, 3.0, 2.0, 2.5, 5.0)
    numbers = dict(zip((*WARP, "factor", "exponent", "scale"), generator.uniform(low, high), strict=True))
    places = [{"x": x, "y": y} for x, y in proxies.tolist()]
    return numbers | {"f": function, "own": own, "proxies": places, "points": np.array(points).tolist()}


def python_readings(case):
    embeddings = torch.tensor(case["points"], dtype=torch.float64, requires_grad=True)
    proxies = torch.tensor([list(each.values()) for each in case["proxies"]], dtype=torch.float64)
    labels = torch.full((len(embeddings),), case["own"])
    scale = case["scale"]

    def losses(proxies, own=None):
        if case["f"] == "warp":
            if own is not None:
                return softmax_loss(embeddings, proxies, labels, own=own, scale=scale)
            warp = {name: case[name] for name in WARP}
            return warped_softmax_loss(embeddings, proxies, labels, scale=scale, **warp)
        if case["f"] == "multiple":
            return scaled_loss(embeddings, proxies, labels, factor=case["factor"], scale=scale)
        if case["f"] == "power":
            return power_loss(embeddings, proxies, labels, exponent=case["exponent"], scale=scale)
        return softmax_loss(embeddings, proxies, labels, scale=scale)

    values = losses(proxies)
    (gradients,) = torch.autograd.grad(values.sum(), embeddings)
    on_proxies = [
        -torch.autograd.functional.jacobian(lambda p, row=row: losses(p)[row], proxies).flatten()
        for row in range(len(values))
    ]
    feels = losses(proxies, own=felt(**{name: case[name] for name in ("alpha", "k1", "k2")}))
    columns = [values[:, None], feels[:, None], -gradients, torch.stack(on_proxies)]
    return torch.cat(columns, dim=1).detach()


@in_browser
@pytest.mark.parametrize("function", ["warp", "plain", "multiple", "power"])
def test_losses_and_gradients_are_those_of_python(tab, function):
    generator = np.random.default_rng(16)
    cases = [drawn_case(generator, function) for _ in range(25)]
    for case, found in zip(cases, tab.evaluate(READ, cases), strict=True):
        expected = python_readings(case)
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-9, atol=1e-12)


def surface(tab):
    return tab.evaluate("document.querySelector('#surface').toDataURL()")


def settled(tab):
    """Wait for the fine drawing, which follows the coarse one."""
    tab.wait_for_timeout(400)
    return surface(tab)


def read(tab, what):
    return tab.evaluate(f"window.explorer.{what}")


@in_browser
def test_a_proxy_is_dragged(tab):
    before = settled(tab)
    star = tab.get_by_role("button", name="Proxy of the orange class, shown").bounding_box()
    x, y = star["x"] + star["width"] / 2, star["y"] + star["height"] / 2
    unit = read(tab, "viewNow().unit")
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x - unit, y - unit, steps=4)
    tab.mouse.up()
    after = settled(tab)
    assert read(tab, "settings.proxies[0]") == pytest.approx({"x": 1.0, "y": 1.0}, abs=1 / unit)
    assert read(tab, "settings.own") == 0
    assert after != before
    lowest, mine = read(tab, "shown.lowest"), read(tab, "shown.mine")
    assert np.hypot(lowest["x"] - mine["x"], lowest["y"] - mine["y"]) == pytest.approx(3.0)
    assert "proxies=1.0" in tab.url


@in_browser
def test_a_slider_and_its_number_move_the_reversal(tab):
    before = settled(tab)
    tab.locator("#alpha").focus()
    for _ in range(10):
        tab.keyboard.press("ArrowLeft")
    assert read(tab, "settings.alpha") == 2.5
    assert tab.locator("#alpha + input").input_value() == "2.5"
    settled(tab)
    assert read(tab, "shown.settles") == pytest.approx(2.5)
    assert "settle 2.50" in tab.locator("#verdict").inner_text()
    tab.locator("#alpha + input").fill("1.25")
    assert settled(tab) != before
    assert read(tab, "shown.settles") == pytest.approx(1.25)
    tab.locator("#alpha + input").fill("-4")
    assert read(tab, "settings.alpha") == 1.25


@in_browser
def test_each_function_is_judged_as_the_paper_does(tab):
    verdicts = {("plain", None): "wherever", ("power", 2): "without end", ("power", 0.5): "on their proxy"}
    verdicts |= {
        ("multiple", 0.97): "without end",
        ("multiple", 1.1): "on their proxy",
        ("warp", None): "settle 3.00",
    }
    for (function, number), words in verdicts.items():
        tab.check(f"[name=f][value={function}]", force=True)
        key = {"power": "exponent", "multiple": "factor"}.get(function)
        if key:
            tab.locator(f"#{key} + input").fill(str(number))
        settled(tab)
        assert words in tab.locator("#verdict").inner_text()
        assert tab.locator("#alpha").is_visible() == (function == "warp")


@in_browser
def test_the_two_views_differ_inside_alpha_and_are_named(tab):
    feels = settled(tab)
    tab.get_by_role("radio", name="What the loss says").check(force=True)
    says = settled(tab)
    assert says != feels
    assert "value that training prints" in tab.locator("#says").inner_text()
    tab.check("[name=f][value=plain]", force=True)
    plain = settled(tab)
    tab.get_by_role("radio", name="What embeddings feel").check(force=True)
    assert settled(tab) == plain


@in_browser
def test_the_keyboard_alone_is_enough(tab):
    settled(tab)
    tab.get_by_role("button", name="Proxy of the yellow class").focus()
    tab.keyboard.press("Shift+ArrowUp")
    tab.keyboard.press("ArrowLeft")
    assert read(tab, "settings.proxies[1]") == pytest.approx({"x": -2.1, "y": 0.5})
    tab.keyboard.press("Enter")
    assert read(tab, "settings.own") == 1
    assert tab.evaluate("document.activeElement.ariaLabel") == "Proxy of the yellow class, shown"
    tab.get_by_role("button", name="Add a proxy").press("Enter")
    assert read(tab, "settings.proxies.length") == 3
    tab.get_by_role("button", name="Proxy of the pink class").press("Delete")
    assert read(tab, "settings.proxies.length") == 2
    tab.get_by_role("button", name="Embedding to drag").press("ArrowRight")
    assert read(tab, "settings.probe.x") == pytest.approx(3.0)
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("f")
    assert read(tab, "settings.show") == "value"
    tab.keyboard.press(" ")
    assert tab.locator("#play").inner_text() == "Pause"


@in_browser
def test_embeddings_roll_to_alpha(tab):
    tab.click("#clear")
    x, y = read(tab, "viewNow().toScreen(4, 2)")
    tab.click("#surface", position={"x": x, "y": y})  # which also starts them
    dropped = places(tab)
    assert dropped.shape == (25, 2)
    tab.wait_for_timeout(300)
    assert np.abs(places(tab) - dropped).max() > 0
    tab.click("#play")  # pauses; the rest need not be watched
    tab.evaluate(
        """() => { const {particles, modelOf, roll} = window.explorer;
        for (let k = 0; k < 4000; k++) roll(particles, modelOf(), {rate: 0.3, noise: 0, learn: false}); }"""
    )
    assert np.abs(places(tab) - (5.0, 0.0)).max() < 0.1  # 3 beyond the proxy at (2, 0), away from the other


def places(tab):
    return np.array([[each["x"], each["y"]] for each in read(tab, "particles")])


@in_browser
def test_an_address_brings_the_settings_back(browser, address):
    keys = ("f", "alpha", "k1", "show")
    for given, expected, count in (
        ("#f=power&alpha=1.5&k1=0.5&show=value&proxies=1,1,-1,-1,0,3", ["power", 1.5, 0.5, "value"], 3),
        ('#f=x"]&alpha=nine&k1=-1&show=&proxies=1,2,x,4', ["warp", 3, 0.65, "felt"], 2),
    ):
        tab, problems = opened(browser, address + given)
        settings = read(tab, "settings")
        tab.context.close()
        assert [settings[key] for key in keys] == expected
        assert len(settings["proxies"]) == count
        assert problems == []


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling_and_drags_by_touch(browser, address, scheme):
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    tab, problems = opened(browser, address, color_scheme=scheme, **phone)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (np.mean([int(part) for part in paper[4:-1].split(",")]) > 128) == (scheme == "light")
    star = tab.get_by_role("button", name="Proxy of the orange class, shown").bounding_box()
    assert min(star["width"], star["height"]) >= 44
    x, y = star["x"] + star["width"] / 2, star["y"] + star["height"] / 2
    finger = tab.context.new_cdp_session(tab)
    for kind, by in (("touchStart", 0), ("touchMove", 20), ("touchMove", 40), ("touchEnd", None)):
        touches = [] if by is None else [{"x": x - by, "y": y}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})
    assert read(tab, "settings.proxies[0].x") == pytest.approx(2 - 40 / read(tab, "viewNow().unit"), abs=0.05)
    tab.context.close()
    assert problems == []
