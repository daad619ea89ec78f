// Handles, sliders, buttons and keys, and the settings in the page's address.

const DIAMOND = "M0-9 9 0 0 9-9 0Z", DISC = "M-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0Z";
const STAR = "M0-12 3.3-4 12-3.5 5.3 2 7.4 10.5 0 5.8-7.4 10.5-5.3 2-12-3.5-3.3-4Z";

// A button for each proxy, and the last for the probe; buttons are kept, so that focus is.
function makeHandles() {
  const box = element("handles"), { proxies, own } = settings;
  while (box.children.length > proxies.length + 1) box.firstChild.remove();
  while (box.children.length < proxies.length + 1) box.prepend(document.createElement("button"));
  [...box.children].forEach((handle, k) => {
    const probe = k === proxies.length, [path, fill] = probe ? [DIAMOND, "#fff"] : [k === own ? STAR : DISC, COLOURS[k]];
    const ariaLabel = probe ? "Embedding to drag" : `Proxy of the ${CLASS_NAMES[k]} class${k === own ? ", shown" : ""}`;
    Object.assign(handle, { className: "handle", ariaLabel }).dataset.proxy = probe ? "" : k;
    handle.innerHTML = `<svg viewBox="-13 -13 26 26"><path d="${path}" fill="${fill}" stroke="#0b1020" stroke-width="2"/></svg>`;
  });
  change();
}

function setProxies(proxies, own = settings.own) {
  Object.assign(settings, { proxies, own: Math.min(own, proxies.length - 1) });
  particles.splice(0, LIMIT, ...particles.filter((each) => each.label < proxies.length));
  makeHandles();
}

const removeProxy = (k) => settings.proxies.length > 2 && setProxies(settings.proxies.filter((_, j) => j !== k));
const placeOf = (handle) => settings.proxies[handle.dataset.proxy] ?? settings.probe;

function moveTo(handle, [x, y]) {
  const { left, right, bottom, top } = viewNow().bounds;
  Object.assign(placeOf(handle), { x: Math.max(left, Math.min(right, x)), y: Math.max(bottom, Math.min(top, y)) });
  change();
}

function planeOf(event) {
  const { left, top } = element("plane").getBoundingClientRect();
  return viewNow().toPlane(event.clientX - left, event.clientY - top);
}

const listen = (target, handlers) => Object.entries(handlers).forEach((each) => target.addEventListener(...each));

let held = null, moved = false, pouring = false;
listen(element("handles"), {
  pointerdown: (event) => {
    [held, moved] = [event, false];
    event.target.setPointerCapture(event.pointerId);
  },
  pointermove: (event) => {
    moved ||= held && length(event.clientX - held.clientX, event.clientY - held.clientY) > 3;
    if (held && moved) moveTo(held.target, planeOf(event));
  },
  lostpointercapture: () => (held = null),
  click: (event) => {  // a tap, or Enter, which has no detail
    const { proxy } = event.target.dataset;
    if (proxy && !(event.detail && moved)) setProxies(settings.proxies, Number(proxy));
  },
  keydown: (event) => {
    const step = event.shiftKey ? 0.5 : 0.1, { x, y } = placeOf(event.target), { proxy } = event.target.dataset;
    const by = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
    if (by) { moveTo(event.target, [x + by[0], y + by[1]]); event.preventDefault(); }
    if (event.key === "Delete" && proxy) removeProxy(Number(proxy));
  },
});

const pour = (event, count) => { scatter(particles, planeOf(event), settings.own, count, 0.25); play(true); };
const slide = (event) => event.buttons && moveTo(element("handles").lastChild, shown.line.at(toLine(event.offsetX)));
listen(element("profile"), { pointerdown: slide, pointermove: slide });
listen(element("surface"), {
  pointerdown: (event) => { pouring = true; pour(event, 25); },
  pointermove: (event) => pouring && pour(event, 3),
});

const choose = (key, value) => { settings[key] = value; showSettings(); };
const rows = [...document.querySelectorAll(".row")].map((row) => [...row.querySelectorAll("input")]);
for (const [range, box] of rows) {
  range.oninput = () => choose(range.id, Number(range.value));
  box.oninput = () => box.value !== "" && box.validity.valid && choose(range.id, Number(box.value));
}

// Put every control where the settings are.
function showSettings() {
  for (const [range, box] of rows) {
    range.value = settings[range.id];
    if (box.value === "" || Number(box.value) !== settings[range.id]) box.value = settings[range.id];
  }
  for (const each of document.querySelectorAll("[data-f]")) {
    each.hidden = !each.dataset.f.includes(settings.f) || (each.dataset.show ?? settings.show) !== settings.show;
  }
  for (const each of document.querySelectorAll("[data-of]")) each.textContent = settings[each.dataset.of];
  for (const name of ["f", "show"]) document.querySelector(`[name=${name}][value=${settings[name]}]`).checked = true;
  change();
}

function play(on) {
  playing = on;
  element("play").textContent = on ? "Pause" : "Play";
  framed ||= requestAnimationFrame(frame);
}

function scatterAll() {
  const { proxies, span } = settings;
  particles.length = 0;
  proxies.forEach((_, label) => scatter(particles, [0, 0], label, 240 / proxies.length, span / 5));
  change();
}

const BUTTONS = {
  play: () => play(!playing), scatter: scatterAll, clear: () => { particles.length = 0; change(); },
  in: () => choose("span", Math.max(4, settings.span / 1.25)), out: () => choose("span", Math.min(60, settings.span * 1.25)),
  more: () => settings.proxies.length < COLOURS.length && setProxies([...settings.proxies, { x: gaussian(), y: gaussian() }]),
  fewer: () => removeProxy(settings.proxies.length - 1),
  switch: () => choose("show", settings.show === "felt" ? "value" : "felt"),
};
const KEYS = { " ": "play", s: "scatter", f: "switch", "+": "in", "-": "out" };
const TYPING = "select, button, summary, [type=range], [type=number]";

function save() {
  const { probe, proxies, own, span, ...rest } = settings;
  const places = proxies.flatMap(({ x, y }) => [x.toFixed(2), y.toFixed(2)]);
  history.replaceState(null, "", `#${new URLSearchParams({ ...rest, proxies: places })}`);
}

// Places from "x,y,x,y,..."; undefined unless they are two or more, and no more than there are colours.
function parsePlaces(text) {
  const numbers = text.split(",").map(Number), count = numbers.length / 2;
  const good = numbers.every(Number.isFinite) && Number.isInteger(count) && count >= 2 && count <= COLOURS.length;
  return good ? Array.from({ length: count }, (_, k) => ({ x: numbers[2 * k], y: numbers[2 * k + 1] })) : undefined;
}

function load() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [{ id, min, max }] of rows) {
    const value = Number(given.get(id) ?? NaN);
    if (value >= Number(min) && value <= Number(max)) settings[id] = value;
  }
  for (const { name, value } of document.querySelectorAll("[type=radio]")) if (given.get(name) === value) settings[name] = value;
  settings.proxies = parsePlaces(given.get("proxies") ?? "") ?? settings.proxies;
}

for (const [id, click] of Object.entries(BUTTONS)) if (element(id)) listen(element(id), { click });
for (const name of ["f", "show"]) listen(element(name), { change: (event) => choose(name, event.target.value) });
listen(element("scene"), { change: ({ target }) => { setProxies(parsePlaces(target.value), 0); target.value = ""; } });
listen(element("arrows"), { change });
listen(dark, { change });
listen(window, {
  resize: change, pointerup: () => (pouring = false), pointercancel: () => (pouring = false),
  keydown: (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(TYPING) || !KEYS[event.key]) return;
    BUTTONS[KEYS[event.key]]();
    event.preventDefault();
  },
});
element("alone").hidden = window.top === window;
load();
showSettings();
makeHandles();
scatterAll();
play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
window.explorer = { settings, particles, modelOf, lossAt, forceAt, roll, viewNow, get shown() { return shown; } };
