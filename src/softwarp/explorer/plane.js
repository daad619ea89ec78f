// The plane: colour and level lines of the loss, arrows of force, and what is drawn over them.

const COLOURS = ["#ff8a1f", "#ffe14d", "#ff6fb5", "#9df06a", "#c9a7ff", "#ffffff"];
const CLASS_NAMES = ["orange", "yellow", "pink", "green", "violet", "white"];
const DEPTHS = {  // from the lowest loss to the highest
  light: ["#17264f", "#234a80", "#3a7aa6", "#74b0b8", "#b5d5c5", "#e3e9d3", "#f6f1e2"],
  dark: ["#070a18", "#0f1a38", "#173258", "#1f4f74", "#2f6f84", "#4d8f90", "#79ab9e"],
};

// 256 colours as [r, g, b, r, g, b, ...].
function rampOf(stops) {
  const channel = (stop, k) => parseInt(stops[stop].slice(1 + 2 * k, 3 + 2 * k), 16);
  return Uint8Array.from({ length: 3 * 256 }, (_, i) => {
    const at = (Math.floor(i / 3) / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return channel(low, i % 3) + (at - low) * (channel(low + 1, i % 3) - channel(low, i % 3));
  });
}

function niceStep(rough) {
  const decade = 10 ** Math.floor(Math.log10(rough));
  return decade * ([1, 2, 5].find((each) => each * decade >= rough) ?? 10);
}

// How the plane lies in the box: `span` units fit into its shorter side, with the origin in the middle.
function viewOf(box, span) {
  const width = box.clientWidth, height = box.clientHeight, unit = Math.min(width, height) / span;
  const right = width / 2 / unit, top = height / 2 / unit;
  return {
    width, height, unit, bounds: { left: -right, right, bottom: -top, top },
    toScreen: (x, y) => [width / 2 + x * unit, height / 2 - y * unit],
    toPlane: (x, y) => [(x - width / 2) / unit, (height / 2 - y) / unit],
  };
}

// Fit a canvas's pixels to its size on the page, and return its context, in CSS pixels.
function contextOf(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.lineCap = context.lineJoin = "round";
  return context;
}

function stroke(context, colour, width, trace, dash = []) {
  Object.assign(context, { strokeStyle: colour, lineWidth: width }).setLineDash(dash);
  context.beginPath();
  trace(context);
  context.stroke();
}

// log10 of the loss at every `step`th pixel, its range, and how far level lines are apart.
function sample(model, label, view, kind, step) {
  const columns = Math.ceil(view.width / step) + 1, rows = Math.ceil(view.height / step) + 1;
  const levels = new Float64Array(columns * rows), own = model.own[kind];
  let low = Infinity, high = -Infinity;
  for (let j = 0, at = 0; j < rows; j++) {
    for (let i = 0; i < columns; i++, at++) {
      const [x, y] = view.toPlane(i * step, j * step);
      const level = levels[at] = logLoss(exponentAt(model, label, x, y, own));
      if (level < low) low = level;
      if (level > high) high = level;
    }
  }
  return { columns, rows, levels, low, high, every: niceStep(Math.max(high - low, 0.1) / 18) };
}

function drawSurface(context, { columns, rows, levels, low, high, every }, ramp, step) {
  const image = new ImageData(columns, rows), pixels = image.data, range = Math.max(high - low, 1e-6);
  for (let j = 0, at = 0; j < rows; j++) {
    const up = j ? -columns : 0, down = j < rows - 1 ? columns : 0;
    for (let i = 0; i < columns; i++, at++) {
      const level = levels[at] / every, stepped = 0.6 * level + 0.4 * (Math.floor(level) + 0.5);
      const colour = 3 * Math.max(0, Math.min(255, Math.round((255 * (stepped * every - low)) / range)));
      const across = levels[at + (i < columns - 1 ? 1 : 0)] - levels[at - (i ? 1 : 0)];
      const slope = length(across, levels[at + down] - levels[at + up]) / 2 / every;
      const away = slope > 1e-4 ? Math.abs(level - Math.round(level)) / slope : 9;  // from the next level line, in samples
      const shade = away < 1 ? 0.7 + 0.3 * away : 1;
      for (let k = 0; k < 3; k++) pixels[4 * at + k] = ramp[colour + k] * shade;
      pixels[4 * at + 3] = 255;
    }
  }
  const scratch = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  scratch.getContext("2d").putImageData(image, 0, 0);
  context.drawImage(scratch, -step / 2, -step / 2, columns * step, rows * step);
}

function arrow(context, colour, width, x, y, dx, dy, head) {
  const size = length(dx, dy), ux = (head * dx) / size, uy = (head * dy) / size;
  if (size >= 1) stroke(context, colour, width, () => {
    context.moveTo(x, y);
    context.lineTo(x + dx, y + dy);
    context.lineTo(x + dx - ux - 0.6 * uy, y + dy - uy + 0.6 * ux);
    context.moveTo(x + dx, y + dy);
    context.lineTo(x + dx - ux + 0.6 * uy, y + dy - uy - 0.6 * ux);
  });
}

// Arrows grow with the force, but less and less, so that weak forces stay visible.
function drawArrows(context, model, label, view, grid, kind, light) {
  const spacing = Math.max(30, Math.min(44, view.width / 18)), middle = (grid.low + grid.high) / 2;
  for (let sy = spacing / 2; sy < view.height; sy += spacing) {
    for (let sx = spacing / 2; sx < view.width; sx += spacing) {
      const [x, y] = view.toPlane(sx, sy), force = forceAt(model, label, x, y), size = length(force.x, force.y);
      if (size < 1e-4) continue;
      const long = spacing * (0.2 / size + 0.55 / (size + 0.3)), dx = force.x * long, dy = -force.y * long;
      const pale = light && logLoss(exponentAt(model, label, x, y, model.own[kind])) > middle;
      arrow(context, pale ? "#17264fb0" : "#ffffffb8", 1.3, sx - dx / 2, sy - dy / 2, dx, dy, 4);
    }
  }
}

// The line of the profile, the radius alpha, and where embeddings settle.
function drawGeometry(context, view, { line, mine, alpha, lowest }) {
  const circle = (at, radius) => () => context.arc(...view.toScreen(at.x, at.y), radius, 0, 2 * Math.PI);
  stroke(context, "#ffffffa0", 1.2, () => {
    context.moveTo(...view.toScreen(...line.at(-200)));
    context.lineTo(...view.toScreen(...line.at(200)));
  }, [2, 5]);
  if (alpha !== null) stroke(context, "#ffb066", 2, circle(mine, alpha * view.unit), [7, 5]);
  if (!lowest) return;
  stroke(context, "#00000080", 6, circle(lowest, 13));
  stroke(context, "#ffffff", 3, circle(lowest, 13));
}

// The probe's forces: pull to its own proxy, mean push of the others, and what is left of both.
function drawProbe(context, view, probe, force) {
  const [x, y] = view.toScreen(probe.x, probe.y);
  const parts = [
    ["pull", "#ff9d4d", -force.pullX, -force.pullY],
    ["push", "#7fd8ff", force.pushX, force.pushY],
    ["", "#ffffff", force.pushX - force.pullX, force.pushY - force.pullY],
  ];
  Object.assign(context, { font: "600 12px system-ui, sans-serif", textAlign: "center", textBaseline: "middle" });
  for (const [name, colour, dx, dy] of parts) {
    const size = length(dx, dy), unit = 64 * Math.min(1, 2.2 / size), words = `${name} ${size.toFixed(2)}`;
    arrow(context, "#0008", name ? 5 : 7, x, y, dx * unit, -dy * unit, 8);
    arrow(context, colour, name ? 2.5 : 4, x, y, dx * unit, -dy * unit, 8);
    if (!name || size < 0.05) continue;
    const at = [Math.max(30, Math.min(view.width - 30, x + dx * (unit + 28 / size))), y - dy * (unit + 16 / size)];
    Object.assign(context, { strokeStyle: "#000a", lineWidth: 3, fillStyle: colour });
    context.strokeText(words, ...at);
    context.fillText(words, ...at);
  }
}
