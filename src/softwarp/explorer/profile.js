// The line L_p: the loss along it, and where the outward force turns round.

// Points on the line through its own proxy and a rival: r > 0 lies beyond its own proxy, away from the rival.
function lineOf(mine, rival, alpha) {
  const gap = length(mine.x - rival.x, mine.y - rival.y) || 1e-9;
  const ux = (mine.x - rival.x) / gap, uy = (mine.y - rival.y) / gap;
  const start = -1.25 * gap - 0.5, end = Math.max(1.8 * (alpha ?? 0), 1.25 * gap, 4);
  return { ux, uy, gap, start, end, at: (r) => [mine.x + r * ux, mine.y + r * uy] };
}

// What is left of push and pull along the line, outward positive; without the strength of the softmax.
function outwardAt(model, label, line, r) {
  const force = forceAt(model, label, ...line.at(r));
  return (force.pushX - force.pullX) * line.ux + (force.pushY - force.pullY) * line.uy;
}

// Where embeddings settle on the line: a distance beyond the proxy, 0, Infinity, or null where nothing acts.
function settlesAt(model, label, line) {
  const place = (k) => 40 * Math.max(line.gap, line.end) * (k / 4000) ** 2;
  const forces = Array.from({ length: 4000 }, (_, k) => outwardAt(model, label, line, place(k + 1)));
  const turn = forces.findIndex((force) => force < -1e-9);
  if (turn < 0) return Math.max(...forces) > 1e-9 ? Infinity : null;
  let low = turn ? place(turn) : 0, high = place(turn + 1);
  for (let k = 0; turn && k < 50; k++) {
    const middle = (low + high) / 2;
    if (outwardAt(model, label, line, middle) > 0) low = middle; else high = middle;
  }
  return low;
}

// Draws both losses above and the outward force below; returns the place on the line of an x on the canvas.
function drawProfile(canvas, model, label, { line, settles, two }, { probe, kind, colour }) {
  const context = contextOf(canvas), width = canvas.clientWidth, height = canvas.clientHeight, left = 44, right = width - 8;
  const places = Array.from({ length: 400 }, (_, k) => line.start + ((line.end - line.start) * k) / 399);
  const levels = (own) => places.map((r) => logLoss(exponentAt(model, label, ...line.at(r), own)));
  const felt = levels(model.own.felt), value = levels(model.own.value);
  const low = Math.min(...felt, ...value), range = Math.max(Math.max(...felt, ...value) - low, 0.1), ground = height * 0.58;
  const toX = (r) => left + ((r - line.start) / (line.end - line.start)) * (right - left);
  const toY = (level) => ground - ((level - low) / range) * (ground - 26);
  const path = (points) => () => points.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
  const upright = (r, ink, dash) => stroke(context, ink, 1.3, path([[toX(r), 20], [toX(r), height - 20]]), dash);
  const text = (words, x, y, ink, align = "left") => {
    Object.assign(context, { fillStyle: ink, textAlign: align });
    context.fillText(words, x, y);
  };
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";

  const faint = colour("--faint"), ink = colour("--ink"), every = niceStep(range / 4);
  for (let level = Math.ceil(low / every) * every; level <= low + range; level += every) {
    stroke(context, colour("--line"), 1, path([[left, toY(level)], [right, toY(level)]]));
    text(written(level), left - 6, toY(level) + 4, faint, "right");
  }
  for (const [name, r] of two ? [["other", -line.gap], ["own proxy", 0]] : [["own proxy", 0]]) {
    upright(r, faint);
    text(name, toX(r), height - 6, faint, "center");
  }
  for (const [name, levels] of [["felt", felt], ["value", value]]) {
    const chosen = name === kind, dash = name === "value" ? [5, 5] : [];
    stroke(context, chosen ? ink : faint, chosen ? 2.4 : 1.4, path(places.map((r, k) => [toX(r), toY(levels[k])])), dash);
  }
  text("loss on the line: felt ––, said - -", left, 12, faint);

  // Between the proxies the force is large; bars are cut there, so that those beyond its own proxy are seen.
  const forces = places.map((r) => outwardAt(model, label, line, r)), middle = (ground + height) / 2 + 4;
  const most = Math.max(0.1, ...forces.filter((_, k) => places[k] > 0).map(Math.abs)), tallest = (height - ground) / 2 - 28;
  const out = colour("--out"), inward = colour("--in");
  forces.forEach((force, k) => {
    context.fillStyle = force > 0 ? out : inward;
    context.fillRect(toX(places[k]), middle, (right - left) / 399 + 0.5, -Math.max(-1.2, Math.min(1.2, force / most)) * tallest);
  });
  text("outward ▲", left, ground + 16, out);
  text("inward ▼", right, ground + 16, inward, "right");
  if (settles > 0 && settles < line.end) {
    upright(settles, out, [6, 4]);
    text(`reversal at ${settles.toFixed(2)}`, right, 12, out, "right");
  }
  upright(probe, colour("--accent"), [2, 4]);
  return (x) => line.start + ((x - left) / (right - left)) * (line.end - line.start);
}
