// Duplicates and outliers, one after the other, by keyboard or by clicking.
import { askJson, choose, chosen, enlarge, make, showProgress, tile } from "/page.js";
import { relabelBox, showPending } from "/relabel.js";

const walks = {};

class Walk { // entries that are loaded a page at a time, and the one that is looked at
  constructor(section, { address, entries, title, nothing, draw, keys }) {
    Object.assign(this, { section, address, entries, title, nothing, draw, keys, found: [], count: 0, place: 0 });
  }
  async load() {
    const answer = await askJson(`/api/${this.address}?start=${this.found.length}`);
    if (answer.state === "failed") throw new Error(answer.what);
    if (answer.state === "working") {
      const box = make("div", { className: "progress" }, make("p"), make("progress"));
      showProgress(box, this.title, answer);
      this.section.replaceChildren(box);
      setTimeout(() => { if (!this.section.hidden) this.show(); }, 600);
      return false;
    }
    this.found.push(...answer[this.entries]);
    this.count = answer.count;
    return true;
  }
  async show() {
    if (!this.found.length && !(await this.load())) return;
    if (!this.count) { this.section.replaceChildren(make("p", { className: "empty", textContent: this.nothing })); return; }
    const entry = this.found[this.place];
    const turn = (step, text, key) => make("button", { type: "button", textContent: text, title: key, onclick: () => this.go(step) });
    const keys = make("span", { className: "keys" }, ...this.keys.flatMap(([key, text]) => [make("kbd", { textContent: key }), ` ${text}  `]));
    const bar = make("div", { className: "bar" }, turn(-1, "‹ Previous", "←"), turn(1, "Next ›", "→"),
      make("span", { className: "where", textContent: `${this.place + 1} of ${this.count.toLocaleString("en")}` }), keys);
    this.section.replaceChildren(bar, ...this.draw(entry));
  }
  async go(step) {
    const next = this.place + step;
    if (next < 0 || next >= this.count) return;
    if (next >= this.found.length) await this.load();
    this.place = Math.min(next, this.found.length - 1);
    await this.show();
  }
  get entry() { return this.found[this.place]; }
}

// What a key does in the list that is shown; whether it did anything.
export function pressed(key) {
  const walk = Object.values(walks).find((each) => !each.section.hidden && each.count);
  if (!walk) return false;
  const group = walk.entry.images ?? [walk.entry];
  if (key === "ArrowRight" || key === "j") walk.go(1);
  else if (key === "ArrowLeft" || key === "k") walk.go(-1);
  else if (key === "a" && walk.label) walk.label.accept();
  else if (key === "u" && walk.label) walk.label.undo();
  else if (key === "s") location.hash = `#/image/${group[0].id}`;
  else if (key === "x" && group.length === 1) choose(group[0].id);
  else if (key === "x") { const on = !group.slice(1).every((each) => chosen.has(each.id)); for (const each of group.slice(1)) choose(each.id, on); }
  else if (/^[1-9]$/.test(key) && group[key - 1]) choose(group[key - 1].id);
  else return false;
  return true;
}

function large(image, caption) {
  const figure = tile(image, { caption, open: () => enlarge(image) });
  figure.querySelector("img").src = `/api/images/${image.id}/picture`;
  return figure;
}

export async function showDuplicates(section) {
  walks.duplicates ??= new Walk(section, {
    address: "duplicates", entries: "groups", title: "Looking for near-duplicates", nothing: "No near-duplicates: all images are well apart.",
    keys: [["← →", "walk"], ["1-9", "select one"], ["x", "select all but the first"], ["s", "similar images"]],
    draw: (group) => [make("div", { className: "group" }, ...group.images.map((image, place) => {
      const figure = large(image, place ? `${place + 1} · ${image.distance.toFixed(4)}` : "1 · first");
      figure.querySelector("figcaption").append(make("p", { className: "path", textContent: image.path }));
      return figure;
    }))],
  });
  await walks.duplicates.show();
}

export async function showOutliers(section) {
  walks.outliers ??= new Walk(section, {
    address: "outliers", entries: "images", title: "Comparing labels with neighbours", nothing: "No outliers: neighbours agree with every label.",
    keys: [["← →", "walk"], ["a", "relabel as suggested"], ["u", "undo"], ["x", "select"], ["s", "similar images"]],
    draw: (image) => {
      const others = make("div", { className: "tiles" });
      askJson(`/api/images/${image.id}/neighbours?k=8`).then((answer) => others.replaceChildren(...answer.results.map((each) => tile(each))), () => {});
      const verdict = make("p", { className: "verdict" }, "labelled ", make("span", { className: "doubted", textContent: image.class ?? "" }), ", but its neighbours say ", make("b", { textContent: image.suggested }));
      const pending = make("p", { className: "pending", hidden: true });
      const update = () => showPending(pending).catch(() => {});
      walks.outliers.label = relabelBox(image, update);
      update();
      return [make("div", { className: "odd" }, large(image, `score ${image.score.toFixed(2)}`),
        make("div", {}, verdict, make("p", { className: "path", textContent: image.path }), walks.outliers.label, pending, make("h2", { textContent: "Its nearest neighbours" }), others))];
    },
  });
  await walks.outliers.show();
}
