// The page: what is in the address bar decides what is shown.
//   #/  #/image/12  #/upload/0  #/map  #/map/12  #/duplicates  #/outliers
import { CollectionMap } from "/map.js";
import { showDuplicates, showOutliers, pressed } from "/lists.js";

export const $ = (id) => document.getElementById(id);
const STEP = 24; // images per answer
const uploads = []; // {blob, url}: queries of this visit
export const chosen = new Map(); // id -> true
let about, map, asked = 0, count = STEP, mapVersion;

// Elements are built, never parsed: names of files and classes stay text.
export function make(tag, settings = {}, ...children) {
  const element = Object.assign(document.createElement(tag), settings);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export async function ask(path, settings) {
  const response = await fetch(path, settings);
  if (response.ok) return response;
  let detail = response.statusText;
  try { detail = (await response.json()).detail; } catch { /* not JSON: the status has to do */ }
  throw new Error(detail || `the server answered ${response.status}`);
}
export const askJson = async (path, settings) => (await ask(path, settings)).json();
export const thumbnail = (id) => `/api/images/${id}/thumbnail`;

export function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

export function filters(extra = {}) {
  const query = new URLSearchParams(extra);
  for (const name of ["class", "path"]) if ($(name).value.trim()) query.set(name, $(name).value.trim());
  return query;
}

// How far away a neighbour may be; it filters answers to a query, not the collection.
const reach = () => ($("within").value ? { within: $("within").value } : {});

// ---- selection

export function choose(id, on = !chosen.has(id)) {
  if (on) chosen.set(id, true); else chosen.delete(id);
  showChosen();
}

export function showChosen() {
  $("selection").hidden = !chosen.size;
  $("chosen").textContent = `${chosen.size.toLocaleString("en")} selected`;
  for (const tile of document.querySelectorAll(".tile[data-id]")) {
    const on = chosen.has(Number(tile.dataset.id));
    tile.classList.toggle("chosen", on);
    const mark = tile.querySelector(".mark input");
    if (mark) mark.checked = on;
  }
  map?.redraw();
}

async function download() {
  const settings = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ids: [...chosen.keys()] }) };
  const link = make("a", { href: URL.createObjectURL(await (await ask("/api/csv", settings)).blob()), download: "selection.csv" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// ---- images

export function tile(image, { caption, open } = {}) {
  const name = image.class ?? image.path.split("/").pop();
  const picture = make("img", { src: thumbnail(image.id), alt: name, loading: "lazy", title: image.path });
  const button = make("button", { type: "button", onclick: open ?? (() => { location.hash = `#/image/${image.id}`; }) }, picture);
  const box = make("input", { type: "checkbox", checked: chosen.has(image.id), onchange: () => choose(image.id, box.checked) });
  box.setAttribute("aria-label", `Select ${name}`);
  const words = make("figcaption", {}, make("b", { textContent: name, title: image.path }));
  const right = caption ?? (image.distance === undefined ? null : image.distance.toFixed(3));
  if (right !== null) words.append(make("span", { textContent: right }));
  const figure = make("figure", { className: `tile${chosen.has(image.id) ? " chosen" : ""}` }, button, make("label", { className: "mark" }, box), words);
  figure.dataset.id = image.id;
  return figure;
}

export function card(image, close) {
  const select = make("button", { type: "button", textContent: chosen.has(image.id) ? "Deselect" : "Select", onclick: () => {
    choose(image.id);
    select.textContent = chosen.has(image.id) ? "Deselect" : "Select";
  } });
  const leave = () => close?.();
  return [
    make("p", {}, make("b", { textContent: image.class ?? "no class" }), image.path),
    make("div", { className: "actions" },
      make("a", { className: "button", href: `#/image/${image.id}`, textContent: "Similar images", onclick: leave }),
      make("a", { className: "button", href: `#/map/${image.id}`, textContent: "On the map", onclick: leave }),
      select),
  ];
}

export function enlarge(image) {
  const dialog = $("large");
  dialog.querySelector("img").src = `/api/images/${image.id}/picture`;
  dialog.querySelector(".card").replaceChildren(...card(image, () => dialog.close()));
  dialog.showModal();
}

// ---- search

async function showSearch(kind, value) {
  const turn = ++asked;
  const upload = kind === "upload" ? uploads[value] : null;
  if (kind === "upload" && !upload) { location.hash = "#/"; return; }
  let answer, image = null;
  try {
    if (upload) {
      const body = new FormData();
      body.append("image", upload.blob, "query");
      answer = await askJson(`/api/search?${filters({ k: count, ...reach() })}`, { method: "POST", body });
    } else if (kind === "image") {
      [image, answer] = await Promise.all([
        askJson(`/api/images/${value}`), askJson(`/api/images/${value}/neighbours?${filters({ k: count, ...reach() })}`)]);
    } else {
      answer = await askJson(`/api/images?${filters({ count })}`);
    }
  } catch (error) {
    if (turn === asked) clearSearch(); // what is there answers an earlier question
    throw error;
  }
  if (turn !== asked) return; // another question was asked meanwhile
  showQuery(upload, image);
  showVotes(answer.votes ?? [], answer.results?.filter((each) => !each.same_file).length ?? 0);
  const found = answer.results ?? answer.images;
  $("reach").hidden = !answer.results;
  $("heading").textContent = answer.results
    ? `Most similar images, ${answer.distance} distance`
    : `${answer.total.toLocaleString("en")} images. Start from one of these:`;
  $("results").replaceChildren(...found.map((each) => tile(each, each.same_file ? { caption: "same file" } : {})));
  if (!found.length) $("results").replaceChildren(make("p", { className: "empty", textContent: nothing(answer) }));
  $("more").hidden = found.length < count || count >= about.results;
}

function nothing(answer) {
  if (!reach().within || !answer.results || answer.nearest === null) return "Nothing matches the filter.";
  return `Nothing within ${reach().within}: the nearest is ${answer.nearest.toFixed(3)} away.`;
}

function clearSearch() {
  showQuery(null, null);
  showVotes([], 0);
  $("heading").textContent = "";
  $("results").replaceChildren();
  $("more").hidden = true;
}

function showQuery(upload, image) {
  const query = $("query");
  query.hidden = !upload && !image;
  $("invitation").hidden = !query.hidden || !about.uploads;
  if (upload) query.src = upload.url;
  if (image) query.src = thumbnail(image.id);
  query.onclick = image ? () => enlarge(image) : null;
  $("facts").hidden = !image;
  if (!image) return;
  const facts = { class: image.class ?? "none", path: image.path, id: image.id };
  $("facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  $("facts").append(make("dt"), make("dd", {}, make("a", { href: `#/map/${image.id}`, textContent: "show on the map" })));
}

function showVotes(votes, total) {
  $("votes").hidden = !votes.length;
  $("votes").querySelector("ol").replaceChildren(...votes.slice(0, 12).map((vote) => make("li", {},
    make("button", { type: "button", title: `Only ${vote.class}`, onclick: () => { $("class").value = vote.class; refilter(); } },
      make("div", { className: "row" }, make("span", { textContent: vote.class }), make("span", { textContent: `${vote.count} of ${total}` })),
      make("meter", { min: 0, max: total, value: vote.count })))));
}

function search(blob) {
  if (!blob) return;
  if (!about.uploads) { say("This index has no model to embed new images with; click one of its images."); return; }
  if (blob.size > about.upload_bytes) { say(`The file has ${(blob.size / 2 ** 20).toFixed(1)} MB; ${(about.upload_bytes / 2 ** 20).toFixed(0)} MB are allowed.`); return; }
  uploads.push({ blob, url: URL.createObjectURL(blob) });
  location.hash = `#/upload/${uploads.length - 1}`;
}

// ---- map

async function showMap(id) {
  const status = await askJson("/api/map");
  const box = $("progress");
  box.hidden = status.state === "ready";
  if (status.state === "failed") throw new Error(`The map cannot be made: ${status.what}`);
  if (status.state === "working") {
    showProgress(box, "Laying out the map", status);
    setTimeout(() => { if (location.hash.startsWith("#/map")) show(); }, 700);
    return;
  }
  if (mapVersion !== status.version) {
    map ??= new CollectionMap($("canvas"), { chosen, pick: pickOnMap, select: selectOnMap });
    map.load(status, await (await ask("/api/map/points")).arrayBuffer());
    mapVersion = status.version;
    const part = status.images < status.of ? `${status.images.toLocaleString("en")} of ${status.of.toLocaleString("en")} images` : `${status.images.toLocaleString("en")} images`;
    $("note").textContent = `${part}, by ${status.method === "umap" ? "UMAP" : "principal components"}`;
  }
  await filterMap();
  map.resize();
  if (id) map.goTo(id);
}

export function showProgress(box, title, status) {
  box.querySelector("p").textContent = `${title}: ${status.what}`;
  const bar = box.querySelector("progress");
  if (status.total) { bar.max = status.total; bar.value = status.done; } else bar.removeAttribute("value");
}

async function filterMap() {
  const query = filters();
  map.filter([...query].length ? new Set((await askJson(`/api/ids?${query}`)).ids) : null);
}

async function pickOnMap(id) {
  const box = $("card");
  box.hidden = id === null;
  if (id === null) return;
  const image = await askJson(`/api/images/${id}`);
  const close = () => { box.hidden = true; map.highlight(null); };
  box.replaceChildren(
    make("img", { src: thumbnail(id), alt: "", onclick: () => enlarge(image) }), ...card(image),
    make("button", { className: "close", type: "button", textContent: "×", ariaLabel: "Close", onclick: close }));
}

function selectOnMap(ids) {
  for (const id of ids) chosen.set(id, true);
  showChosen();
}

// ---- which view

async function show() {
  const [, view = "", value] = location.hash.split("/");
  const name = ["map", "duplicates", "outliers"].includes(view) ? view : "search";
  for (const each of ["search", "map", "duplicates", "outliers"]) {
    $(each).hidden = each !== name;
    const link = document.querySelector(`nav [data-view=${each}]`);
    if (each === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  $("filters").hidden = name === "duplicates" || name === "outliers";
  document.body.classList.toggle("on-map", name === "map");
  try {
    if (name === "map") await showMap(Number(value) || null);
    else if (name === "duplicates") await showDuplicates($(name));
    else if (name === "outliers") await showOutliers($(name));
    else await showSearch(view, Number(value) || 0);
    say("");
  } catch (error) { say(error.message); }
}

function start(next) { count = STEP; window.scrollTo(0, 0); next(); }

let waiting;
function refilter() {
  for (const name of ["class", "path", "within"]) $(name).classList.toggle("active", Boolean($(name).value.trim()));
  clearTimeout(waiting);
  waiting = setTimeout(() => start(show), 250);
}

function listen() {
  window.addEventListener("hashchange", () => start(show));
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const each of [$("filters"), $("within")]) each.addEventListener("input", refilter);
  $("more").onclick = () => { count = Math.min(count * 2, about.results); show(); };
  for (const input of [$("file"), $("camera")]) input.onchange = () => { search(input.files[0]); input.value = ""; };
  $("clear").onclick = () => { chosen.clear(); showChosen(); };
  $("download").onclick = () => download().catch((error) => say(error.message));
  $("large").onclick = (event) => { if (event.target === $("large")) $("large").close(); };
  document.addEventListener("paste", (event) => search([...event.clipboardData.files].find((file) => file.type.startsWith("image/"))));
  document.addEventListener("dragover", (event) => { event.preventDefault(); $("curtain").hidden = ![...event.dataTransfer.types].includes("Files"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("curtain").hidden = true; });
  document.addEventListener("drop", (event) => { event.preventDefault(); $("curtain").hidden = true; search(event.dataTransfer.files[0]); });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input:not([type=checkbox])") || event.ctrlKey || event.metaKey || event.altKey || $("large").open) return;
    if (pressed(event.key)) event.preventDefault();
  });
  $("closer").onclick = () => map?.zoom(2);
  $("further").onclick = () => map?.zoom(0.5);
  $("whole").onclick = () => map?.fit();
  $("lasso").onclick = () => { const on = map?.toggleSelecting() ?? false; $("lasso").setAttribute("aria-pressed", on); };
}

async function begin() {
  listen();
  try {
    about = await askJson("/api/index");
  } catch (error) { say(error.message); return; }
  document.title = `${about.name} · softwarp`;
  $("name").textContent = about.name;
  $("size").textContent = `${about.images.toLocaleString("en")} images`;
  $("classes").replaceChildren(...about.classes.map((each) => make("option", { value: each.name, label: `${each.count}` })));
  $("within").step = about.distance === "cosine" ? 0.01 : 0.1;
  document.querySelector(".choices").hidden = !about.uploads;
  $("drop").hidden = false;
  await show();
  document.body.dataset.ready = "yes";
}
begin();
