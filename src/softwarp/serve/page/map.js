// A zoomable map of images on a canvas. Cells of a grid that follows the zoom show one thumbnail each, the
// others are dots of their average colour, so that a frame draws some hundred thumbnails whatever the size.
// The server has ordered the points: in each cell of each grid the first one is the one to show.

const CELL = 28; // pixels of a cell, at least; at most twice that
const DEEPEST = 14; // finest grid: 2^14 cells per side
const LARGEST = 160; // pixels of a thumbnail
const SHARP = 60; // device pixels from which an atlas is too coarse
const RECORD = 20; // bytes of a point

class Pictures { // fetched a few at a time, newest wish first; the least recently used are let go
  constructor(address, room, atOnce, arrived) { Object.assign(this, { address, room, atOnce, arrived, kept: new Map(), loading: new Set(), wanted: [] }); }
  get(key) {
    const found = this.kept.get(key);
    if (found) { this.kept.delete(key); this.kept.set(key, found); }
    return found ?? null;
  }
  want(keys) {
    this.wanted = keys.filter((key) => !this.kept.has(key) && !this.loading.has(key));
    while (this.loading.size < this.atOnce && this.wanted.length) this.fetch(this.wanted.shift());
  }
  async fetch(key) {
    this.loading.add(key);
    try {
      const response = await fetch(this.address(key));
      if (response.ok) this.keep(key, await createImageBitmap(await response.blob()));
      else this.keep(key, { width: 0, close() {} }); // there is none
    } catch { /* gone: asked again when it is wanted again */ }
    this.loading.delete(key);
    this.arrived();
    if (this.wanted.length) this.fetch(this.wanted.shift());
  }
  keep(key, picture) {
    this.kept.set(key, picture);
    for (const [old, bitmap] of this.kept) {
      if (this.kept.size <= this.room) break;
      bitmap.close();
      this.kept.delete(old);
    }
  }
}

export class CollectionMap {
  constructor(canvas, { chosen, pick, select }) {
    Object.assign(this, { canvas, chosen, onPick: pick, onSelect: select });
    this.context = canvas.getContext("2d", { alpha: false });
    this.dots = document.createElement("canvas");
    this.view = { x: 0.5, y: 0.5, scale: 500 };
    this.marked = this.hovered = -1;
    this.band = null; // the rectangle that is being drawn
    this.selecting = false;
    this.pointers = new Map();
    this.sharp = new Pictures((id) => `/api/images/${id}/thumbnail`, 600, 6, () => this.redraw());
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.listen();
  }

  load(status, buffer) {
    const data = new DataView(buffer), count = buffer.byteLength / RECORD;
    Object.assign(this, { count, tile: status.tile, columns: status.columns, x: new Float32Array(count), y: new Float32Array(count),
      ids: new Uint32Array(count), colours: new Uint32Array(count), place: new Map(), matching: null, grids: new Map() });
    for (let each = 0; each < count; each++) {
      const at = each * RECORD;
      this.x[each] = data.getFloat32(at, true);
      this.y[each] = data.getFloat32(at + 4, true);
      this.ids[each] = data.getUint32(at + 8, true);
      this.colours[each] = 0xff000000 | data.getUint8(at + 18) << 16 | data.getUint8(at + 17) << 8 | data.getUint8(at + 16);
      this.place.set(this.ids[each], each);
    }
    this.atlases = new Pictures((number) => `/api/map/atlases/${number}?version=${status.version}`, 14, 4, () => this.redraw());
    this.width = 0;
    this.resize();
    this.fit();
  }

  filter(ids) {
    this.matching = ids && Uint8Array.from(this.ids, (id) => ids.has(id));
    this.grids.clear();
    this.redraw();
  }

  // Which points are shown as thumbnails in a grid: in each cell the first one.
  grid(level) {
    let found = this.grids.get(level);
    if (found) return found;
    const cells = 2 ** level, seen = new Set(), shown = [];
    let matching = 0;
    for (let each = 0; each < this.count; each++) {
      if (this.matching && !this.matching[each]) continue;
      matching++;
      const key = Math.floor(this.x[each] * cells) * cells + Math.floor(this.y[each] * cells);
      if (!seen.has(key)) { seen.add(key); shown.push(each); }
    }
    found = { shown: Int32Array.from(shown), whole: shown.length === matching };
    this.grids.set(level, found);
    return found;
  }

  level() {
    let level = Math.max(0, Math.min(DEEPEST, Math.floor(Math.log2(this.view.scale / CELL))));
    while (level > 0 && this.grid(level - 1).whole) level--; // finer grids show no more
    return level;
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.count) return;
    const ratio = window.devicePixelRatio || 1, fresh = !this.width;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.dots.width = width;
    this.dots.height = height;
    this.pixels = new ImageData(width, height);
    this.words = new Uint32Array(this.pixels.data.buffer);
    if (fresh) this.fit(); else this.redraw();
  }

  fit() { this.moveTo({ x: 0.5, y: 0.5, scale: 0.96 * Math.min(this.width, this.height) || 500 }); }
  zoom(factor, at = [this.width / 2, this.height / 2]) { this.moveTo(this.zoomed(factor, at)); }

  goTo(id) {
    const each = this.place.get(id);
    if (each === undefined) return;
    this.highlight(each);
    this.onPick(id);
    this.moveTo({ x: this.x[each], y: this.y[each], scale: Math.max(this.view.scale, CELL * 2 ** Math.max(4, Math.log2(this.count) / 2 + 1)) });
  }

  highlight(each) { this.marked = each ?? -1; this.redraw(); }
  toggleSelecting() { this.selecting = !this.selecting; this.canvas.classList.toggle("selecting", this.selecting); return this.selecting; }

  zoomed(factor, [left, top]) {
    const least = 0.3 * Math.min(this.width, this.height), most = LARGEST * 2 ** DEEPEST / 8;
    const scale = Math.min(most, Math.max(least, this.view.scale * factor));
    const [x, y] = this.world(left, top);
    return { x: x - (left - this.width / 2) / scale, y: y - (top - this.height / 2) / scale, scale };
  }

  moveTo(target) { // glides there, unless that is unwanted
    cancelAnimationFrame(this.glide);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches || !this.width) { this.view = target; this.redraw(); return; }
    const start = { ...this.view }, began = performance.now();
    const step = (now) => {
      const share = Math.min(1, (now - began) / 260), eased = 1 - (1 - share) ** 3;
      const scale = start.scale * (target.scale / start.scale) ** eased;
      // In proportion to the growth of the picture, so that the point in the middle does not swing.
      const moved = Math.abs(target.scale - start.scale) < 1e-9 ? eased : (1 / start.scale - 1 / scale) / (1 / start.scale - 1 / target.scale);
      this.view = { x: start.x + (target.x - start.x) * moved, y: start.y + (target.y - start.y) * moved, scale };
      this.redraw();
      if (share < 1) this.glide = requestAnimationFrame(step);
    };
    this.glide = requestAnimationFrame(step);
  }

  world(left, top) { return [this.view.x + (left - this.width / 2) / this.view.scale, this.view.y + (top - this.height / 2) / this.view.scale]; }

  redraw() {
    if (this.pending || !this.width) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  draw() {
    const began = performance.now(), { context, ratio, view, width, height } = this;
    const style = getComputedStyle(document.documentElement);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = style.getPropertyValue("--paper");
    context.fillRect(0, 0, width, height);
    this.accent = style.getPropertyValue("--accent");
    this.drawDots(style.getPropertyValue("--line"));
    this.drawThumbnails();
    if (this.band) {
      const [left, top, right, bottom] = this.band;
      context.strokeStyle = this.accent;
      context.lineWidth = 1.5;
      context.strokeRect(left, top, right - left, bottom - top);
    }
    Object.assign(this.canvas.dataset, { scale: view.scale.toFixed(1), drawn: this.drawn.length, milliseconds: (performance.now() - began).toFixed(1) });
    clearTimeout(this.calm);
    this.calm = setTimeout(() => this.fetchSharp(), 120);
  }

  drawDots(faint) {
    const { words, width, height, view } = this, [left, top] = this.world(0, 0);
    words.fill(0);
    const grey = 0xff000000 | parseInt(faint.trim().slice(1).match(/../g).reverse().join(""), 16);
    for (let each = this.count - 1; each >= 0; each--) {
      const x = (this.x[each] - left) * view.scale | 0, y = (this.y[each] - top) * view.scale | 0;
      if (x < 0 || y < 0 || x >= width - 1 || y >= height - 1) continue;
      const at = y * width + x;
      words[at] = words[at + 1] = words[at + width] = words[at + width + 1] = this.matching && !this.matching[each] ? grey : this.colours[each];
    }
    this.dots.getContext("2d").putImageData(this.pixels, 0, 0);
    this.context.drawImage(this.dots, 0, 0);
  }

  drawThumbnails() {
    const { context, view, width, height } = this, level = this.level(), cells = 2 ** level;
    const cell = view.scale / cells, size = Math.min(cell * 0.94, LARGEST), slack = (cell - size) / 2;
    const [left, top] = this.world(0, 0), atlases = new Set();
    this.size = size;
    this.drawn = []; // what is where, for the pointer
    for (const each of this.grid(level).shown) {
      const middleX = ((Math.floor(this.x[each] * cells) + 0.5) / cells - left) * view.scale;
      const middleY = ((Math.floor(this.y[each] * cells) + 0.5) / cells - top) * view.scale;
      if (middleX < -cell || middleY < -cell || middleX > width + cell || middleY > height + cell) continue;
      const x = middleX + Math.max(-slack, Math.min(slack, (this.x[each] - left) * view.scale - middleX)) - size / 2;
      const y = middleY + Math.max(-slack, Math.min(slack, (this.y[each] - top) * view.scale - middleY)) - size / 2;
      this.drawn.push({ each, x, y });
      this.drawOne(each, x, y, size, atlases);
    }
    this.atlases.want([...atlases]);
    for (const { each, x, y } of this.drawn) {
      if (!this.chosen.has(this.ids[each]) && each !== this.marked && each !== this.hovered) continue;
      context.strokeStyle = this.accent;
      context.lineWidth = each === this.hovered ? 2 : 3;
      context.strokeRect(x, y, size, size);
    }
  }

  drawOne(each, x, y, size, atlases) {
    const { context, tile, columns } = this;
    const sharp = size * this.ratio > SHARP ? this.sharp.get(this.ids[each]) : null;
    if (sharp?.width) {
      const side = Math.min(sharp.width, sharp.height);
      context.drawImage(sharp, (sharp.width - side) / 2, (sharp.height - side) / 2, side, side, x, y, size, size);
      return;
    }
    const number = Math.floor(each / columns ** 2), place = each % columns ** 2, atlas = this.atlases.get(number);
    if (atlas?.width) {
      context.drawImage(atlas, place % columns * tile, Math.floor(place / columns) * tile, tile, tile, x, y, size, size);
      return;
    }
    if (!atlas) atlases.add(number);
    const colour = this.colours[each];
    context.fillStyle = `rgb(${colour & 255} ${colour >> 8 & 255} ${colour >> 16 & 255})`;
    context.fillRect(x, y, size, size);
  }

  fetchSharp() { // once the view rests
    this.sharp.want(this.size * this.ratio > SHARP ? this.drawn.map(({ each }) => this.ids[each]) : []);
  }

  at(left, top) {
    for (let each = this.drawn.length - 1; each >= 0; each--) {
      const { x, y } = this.drawn[each];
      if (left >= x && top >= y && left <= x + this.size && top <= y + this.size) return this.drawn[each].each;
    }
    return -1;
  }

  inside([left, top, right, bottom]) {
    const [x0, y0] = this.world(Math.min(left, right), Math.min(top, bottom)), [x1, y1] = this.world(Math.max(left, right), Math.max(top, bottom));
    const found = [];
    for (let each = 0; each < this.count; each++) {
      if (this.x[each] >= x0 && this.x[each] <= x1 && this.y[each] >= y0 && this.y[each] <= y1 && (!this.matching || this.matching[each])) found.push(this.ids[each]);
    }
    return found;
  }

  listen() {
    const { canvas, pointers } = this, spot = (event) => [event.offsetX, event.offsetY];
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (!this.width) return;
      cancelAnimationFrame(this.glide);
      const step = event.deltaY * (event.deltaMode === 1 ? 30 : 1);
      this.view = this.zoomed(Math.exp(-step * (event.ctrlKey ? 0.01 : 0.0016)), spot(event));
      this.redraw();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.width) return;
      cancelAnimationFrame(this.glide);
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, spot(event));
      this.moved = 0;
      if (pointers.size === 1 && (this.selecting || event.shiftKey)) this.band = [...spot(event), ...spot(event)];
      else this.band = null;
    });
    canvas.addEventListener("pointermove", (event) => this.pointed(event, spot(event)));
    canvas.addEventListener("pointerup", (event) => {
      pointers.delete(event.pointerId);
      canvas.classList.remove("dragging");
      if (this.band && this.moved > 6) this.onSelect(this.inside(this.band));
      else if (this.moved <= 6 && !pointers.size) this.clicked(spot(event));
      this.band = null;
      this.redraw();
    });
    canvas.addEventListener("pointercancel", (event) => { pointers.delete(event.pointerId); this.band = null; });
    canvas.addEventListener("pointerleave", () => { this.hovered = -1; this.redraw(); });
    canvas.addEventListener("dblclick", (event) => this.zoom(2.5, spot(event)));
    canvas.addEventListener("keydown", (event) => {
      const pan = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (pan) this.moveTo({ ...this.view, x: this.view.x + pan[0] * 120 / this.view.scale, y: this.view.y + pan[1] * 120 / this.view.scale });
      else if (event.key === "+" || event.key === "=") this.zoom(1.6);
      else if (event.key === "-") this.zoom(1 / 1.6);
      else if (event.key === "0") this.fit();
      else return;
      event.preventDefault();
    });
  }

  pointed(event, [left, top]) {
    const { pointers, view } = this, before = pointers.get(event.pointerId);
    if (!this.width) return;
    if (!before) {
      const hovered = this.at(left, top);
      this.canvas.classList.toggle("over", hovered >= 0);
      if (hovered !== this.hovered) { this.hovered = hovered; this.redraw(); }
      return;
    }
    this.moved += Math.hypot(left - before[0], top - before[1]);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (this.band) this.band.splice(2, 2, left, top);
    else if (other) {
      const factor = Math.hypot(left - other[0], top - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1]));
      this.view = this.zoomed(factor, other);
    } else {
      this.canvas.classList.add("dragging");
      this.view = { ...view, x: view.x - (left - before[0]) / view.scale, y: view.y - (top - before[1]) / view.scale };
    }
    pointers.set(event.pointerId, [left, top]);
    this.redraw();
  }

  clicked([left, top]) {
    const each = this.at(left, top);
    this.highlight(each < 0 ? null : each);
    this.onPick(each < 0 ? null : this.ids[each]);
  }
}
