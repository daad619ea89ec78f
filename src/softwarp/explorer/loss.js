// The loss of Eq. 8 and its forces, as losses/warped_softmax.py and losses/warps.py have them; a test compares them.

const length = (x, y) => Math.sqrt(x * x + y * y);
const multiple = (c) => ({ value: (t) => c * t, felt: (t) => c * t, slope: () => c });
const power = (p) => {
  const value = (t) => (t === 0 ? 0 : t ** p);
  return { value, felt: value, slope: (t) => (t === 0 ? 0 : p * t ** (p - 1)) };
};

// Eq. 7. `value` is what training prints; `felt` has the same slopes, with Delta held at the constant (1 - k1) alpha.
const warp = ({ alpha, k1, k2, delta }) => ({
  value: (t) => (t < alpha ? k1 * t + delta * (1 - k1) * t : k2 * t + (1 - k2) * alpha),
  felt: (t) => (t < alpha ? k1 * t + (1 - k1) * alpha : k2 * t + (1 - k2) * alpha),
  slope: (t) => (t < alpha ? k1 : k2),
});

// f1 acts on the distance to its own proxy, f2 on the distances to the others, as in the paper's Table 3.
function functionsOf(settings) {
  if (settings.f === "power") return { own: power(settings.exponent), other: power(settings.exponent) };
  const own = { warp: () => warp(settings), multiple: () => multiple(settings.factor), plain: () => multiple(1) };
  return { own: own[settings.f](), other: multiple(1) };
}

// A model is {own, other, scale, proxies: [{x, y}]}. Returns z; the loss is log(1 + exp(z)).
function exponentAt(model, label, x, y, own) {
  const { proxies, scale } = model, mine = proxies[label], other = model.other.value;
  const pulled = own(length(x - mine.x, y - mine.y));
  let top = -Infinity, sum = 0;
  for (let j = 0; j < proxies.length; j++) {
    if (j === label) continue;
    const gap = scale * (pulled - other(length(x - proxies[j].x, y - proxies[j].y)));
    if (gap <= top) sum += Math.exp(gap - top);
    else { sum = sum * Math.exp(top - gap) + 1; top = gap; }
  }
  return top + Math.log(sum);
}

const softplus = (z) => (z > 0 ? z + Math.log1p(Math.exp(-z)) : Math.log1p(Math.exp(z)));

// log10 of the loss; far from the others the loss itself would round to zero.
const logLoss = (z) => (z < -30 ? z : Math.log(softplus(z))) / Math.LN10;

// kind: "value", what the loss says, or "felt", what embeddings feel.
const lossAt = (model, label, x, y, kind = "value") => softplus(exponentAt(model, label, x, y, model.own[kind]));

// The negative gradient that training gives an embedding, and its parts: force = strength (push - pull).
// With `onProxies`, [x0, y0, x1, y1, ...], the forces on the proxies are added to it.
function forceAt(model, label, x, y, onProxies) {
  const { proxies, scale, own, other } = model, mine = proxies[label];
  const z = exponentAt(model, label, x, y, own.value), strength = scale / (1 + Math.exp(-z));
  const t = length(x - mine.x, y - mine.y), pulled = own.value(t), pull = t === 0 ? 0 : own.slope(t) / t;
  const force = { x: 0, y: 0, strength, pullX: pull * (x - mine.x), pullY: pull * (y - mine.y), pushX: 0, pushY: 0 };
  const onProxy = (j, fx, fy) => { onProxies[2 * j] += strength * fx; onProxies[2 * j + 1] += strength * fy; };
  for (let j = 0; j < proxies.length; j++) {
    if (j === label) continue;
    const dx = x - proxies[j].x, dy = y - proxies[j].y, distance = length(dx, dy);
    const share = Math.exp(scale * (pulled - other.value(distance)) - z);
    const push = distance === 0 ? 0 : (share * other.slope(distance)) / distance;
    force.pushX += push * dx;
    force.pushY += push * dy;
    if (onProxies) onProxy(j, -push * dx, -push * dy);
  }
  if (onProxies) onProxy(label, force.pullX, force.pullY);
  force.x = strength * (force.pushX - force.pullX);
  force.y = strength * (force.pushY - force.pullY);
  return force;
}

// The lowest place that an embedding of the class feels, within `bounds`; null if it lies on their edge.
function lowestPlace(model, label, { left, right, bottom, top }) {
  const place = (x, y, edge = false) => ({ x, y, edge, z: exponentAt(model, label, x, y, model.own.felt) });
  let best = place(model.proxies[label].x, model.proxies[label].y);
  const better = (found, by) => { if (found.z < best.z - by) best = found; return best === found; };
  for (let i = 0; i <= 60; i++) {
    for (let j = 0; j <= 60; j++) {
      better(place(left + (i / 60) * (right - left), bottom + (j / 60) * (top - bottom), i % 60 === 0 || j % 60 === 0), 1e-9);
    }
  }
  for (let step = (right - left) / 60, moved; !best.edge && step > 1e-6; step /= moved ? 1 : 2) {
    moved = false;
    for (let turn = 0; turn < 2 * Math.PI; turn += Math.PI / 8) {
      if (better(place(best.x + step * Math.cos(turn), best.y + step * Math.sin(turn)), 1e-12)) moved = true;
    }
  }
  return best.edge ? null : best;
}
