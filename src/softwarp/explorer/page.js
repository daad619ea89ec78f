// The settings, and what is drawn when.

const element = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (x) => (Math.abs(x) >= 0.01 || x === 0 ? String(Number(x.toPrecision(3))) : x.toExponential(1));
const written = (level) => (level < -99 ? `1e${Math.round(level)}` : number(Number((10 ** level).toPrecision(2))));

const settings = {
  f: "warp", alpha: 3, k1: 0.65, k2: 1.5, delta: 1, factor: 1.1, exponent: 2, scale: 1, speed: 3, noise: 0,
  show: "felt", own: 0, span: 13, proxies: [{ x: 2, y: 0 }, { x: -2, y: 0 }], probe: { x: 2.9, y: 2.2 },
};
const particles = [];
const modelOf = () => ({ ...functionsOf(settings), scale: settings.scale, proxies: settings.proxies });
const viewNow = () => viewOf(element("plane"), settings.span);
let playing = false, dirty = true, framed = 0, finer = 0, shown = null, toLine = null;

// Something changed: draw at the next frame, coarsely, and finely once nothing has changed for a while.
function change() {
  dirty = true;
  framed ||= requestAnimationFrame(frame);
}

function frame() {
  const model = modelOf(), learn = element("learn").checked;
  for (let k = 0; playing && k < 4; k++) roll(particles, model, { rate: 0.03 * settings.speed, noise: settings.noise, learn });
  if (dirty || (playing && learn)) {
    study(model);
    drawPlane(model, 2);
    clearTimeout(finer);
    finer = setTimeout(() => { drawPlane(modelOf(), 1); save(); }, 140);
  }
  drawOver(model);
  dirty = false;
  framed = playing ? requestAnimationFrame(frame) : 0;
}

// Find the line, the lowest place and what to say of them.
function study(model) {
  const { own, f, proxies } = settings, mine = proxies[own], alpha = f === "warp" ? settings.alpha : null;
  const far = (each) => length(each.x - mine.x, each.y - mine.y);
  const nearest = proxies.filter((each) => each !== mine).reduce((best, each) => (far(each) < far(best) ? each : best));
  const two = proxies.length === 2, found = two ? null : lowestPlace(model, own, viewNow().bounds);
  // With more than two proxies the line leads to the lowest place instead.
  const rival = found && far(found) > 1e-3 ? { x: 2 * mine.x - found.x, y: 2 * mine.y - found.y } : nearest;
  const line = lineOf(mine, rival, alpha), settles = settlesAt(model, own, line);
  const [x, y] = line.at(Number.isFinite(settles) ? settles : 0);
  const lowest = two && settles !== null && Number.isFinite(settles) ? { x, y } : found;
  shown = { line, settles, lowest, mine, alpha, two };
  const who = `Embeddings of the ${CLASS_NAMES[own]} class`;
  element("verdict").textContent = two && settles === null ? `${who} feel nothing on the line: they stay wherever they are on it.`
    : !lowest ? `${who} ${two ? "move outward without end: nothing holds them together." : "have no lowest place in view."}`
    : far(lowest) < 1e-3 ? `${who} end on their proxy: nothing pushes them outward.`
    : `${who} settle ${far(lowest).toFixed(2)} from their proxy, on the side away from the others.`;
}

function drawPlane(model, step) {
  const { own, show } = settings, view = viewNow(), depths = DEPTHS[dark.matches ? "dark" : "light"];
  const context = contextOf(element("surface")), grid = sample(model, own, view, show, step);
  drawSurface(context, grid, rampOf(depths), step);
  if (element("arrows").checked) drawArrows(context, model, own, view, grid, show, !dark.matches);
  element("low").textContent = written(grid.low);
  element("high").textContent = written(grid.high);
  element("legend").firstElementChild.style.background = `linear-gradient(to right, ${depths})`;
}

function drawOver(model) {
  const { own, probe, proxies } = settings, { line, mine } = shown, view = viewNow();
  const context = contextOf(element("overlay")), trails = contextOf(element("trails"));
  context.clearRect(0, 0, view.width, view.height);
  drawGeometry(context, view, shown);
  drawParticles(context, trails, view, particles, dirty ? 1 : 0.03);
  const force = forceAt(model, own, probe.x, probe.y);
  drawProbe(context, view, probe, force);
  for (const handle of element("handles").children) {
    const at = proxies[handle.dataset.proxy] ?? probe, [x, y] = view.toScreen(at.x, at.y);
    handle.style.transform = `translate(${x}px, ${y}px)`;
  }
  if (!dirty && !element("learn").checked) return;
  const along = (probe.x - mine.x) * line.ux + (probe.y - mine.y) * line.uy;
  toLine = drawProfile(element("profile"), model, own, shown, { probe: along, kind: settings.show, colour });
  const [said, felt] = ["value", "felt"].map((kind) => number(lossAt(model, own, probe.x, probe.y, kind)));
  const [away, size] = [length(probe.x - mine.x, probe.y - mine.y), length(force.x, force.y)].map(number);
  element("reading").innerHTML = `The diamond is <b>${away}</b> from its own proxy. The loss says <b>${said}</b>;
    what it feels is <b>${felt}</b>, with a force of <b>${size}</b>.`;
}
