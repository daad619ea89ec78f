// The label of an image, to be corrected: take the suggestion, choose a class or type a new one; undo.
import { $, askJson, make, say } from "/page.js";

// A box with the state of an image's label and what can be done about it; `changed` is called after each change.
export function relabelBox(image, changed) {
  const box = make("div", { className: "relabel" });
  box.setAttribute("aria-live", "polite");
  const send = async (name) => {
    const settings = name === null ? { method: "DELETE" }
      : { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify({ class: name }) };
    for (const each of box.querySelectorAll("button, input")) each.disabled = true;
    try {
      image.corrected = (await askJson(`/api/images/${image.id}/label`, settings)).corrected;
      if (image.corrected !== null) offer(image.corrected);
      say("");
    } catch (error) { say(error.message); }
    draw();
    box.querySelector("button")?.focus();
    changed();
  };
  const draw = () => box.replaceChildren(...(image.corrected === null ? choices(image, send) : outcome(image, send)));
  box.accept = () => { if (image.corrected === null) send(image.suggested); };
  box.undo = () => { if (image.corrected !== null) send(null); };
  draw();
  return box;
}

function choices(image, send) {
  const accept = make("button", { type: "button", className: "accept", title: "a", onclick: () => send(image.suggested) },
    "Relabel as ", make("b", { textContent: image.suggested }));
  const input = make("input", { type: "search", placeholder: "another class", autocomplete: "off", maxLength: 200, required: true });
  input.setAttribute("list", "classes");
  input.setAttribute("aria-label", "Another class: choose one or type a new one");
  const form = make("form", { onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) send(input.value.trim()); } },
    input, make("button", { type: "submit", textContent: "Relabel" }));
  return [accept, form];
}

function outcome(image, send) {
  return [make("p", {}, "✓ relabelled as ", make("b", { textContent: image.corrected })), make("button", { type: "button", textContent: "Undo", title: "u", onclick: () => send(null) })];
}

// A class that was typed may be chosen the next time.
function offer(name) {
  if (![...$("classes").options].some((each) => each.value === name)) $("classes").append(make("option", { value: name }));
}

// How many corrections wait, and what applies them.
export async function showPending(place) {
  const { count, file, command } = await askJson("/api/labels");
  place.hidden = !count;
  const many = count === 1 ? "1 correction is" : `${count.toLocaleString("en")} corrections are`;
  place.replaceChildren(`${many} in ${file}, and not yet in the index. Apply: `, make("code", { textContent: command }));
}
