// What opens above a view: a question before something is changed, and one entry with its content.

import { get } from "./api.js";
import { chip, fill, h } from "./dom.js";
import { bytes, count, indented, time } from "./format.js";

function open(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}

// Answers whether it was confirmed; Escape is a no.
export function confirmed({ title, text, action, tone }) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { class: "ask", "aria-labelledby": "ask-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "ask-title" }, title),
        text.map((line) => h("p", {}, line)),
        h(
          "div",
          { class: "buttons" },
          h("button", { value: "no", class: "quiet" }, "Cancel"),
          h("button", { value: "yes", class: tone }, action),
        ),
      ),
    );
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
    open(dialog);
  });
}

function content(entry) {
  if (entry.is_pruned) {
    return h("p", { class: "empty" }, "The content was pruned. Its digest below still proves what it was.");
  }
  const parts = [];
  if (entry.body !== null) {
    parts.push(h("h3", {}, "Body"), h("pre", { tabindex: "0" }, indented(entry.body)));
  }
  if (entry.data !== null) {
    parts.push(h("h3", {}, `Data (${bytes(entry.data_bytes)})`), h("pre", { tabindex: "0" }, entry.data));
  }
  return parts;
}

export async function openEntry(id) {
  const body = h("div", {}, h("p", { class: "muted" }, "Reading …"));
  const dialog = h(
    "dialog",
    { class: "entry", "aria-labelledby": "entry-title" },
    h(
      "header",
      {},
      h("h2", { id: "entry-title" }, `Entry ${count(id)}`),
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close"),
    ),
    body,
  );
  open(dialog);
  try {
    const entry = await get(`entry/${id}`);
    const fields = [
      ["Surface", chip(entry.surface, entry.surface)],
      ["Kind", entry.kind],
      ["Stream", entry.stream],
      ["Serial in stream", count(entry.serial)],
      ["Entity", entry.entity],
      ["Reference", entry.ref || "–"],
      ["Actor", entry.actor || "–"],
      ["Committed", time(entry.at)],
      ["Content", bytes(entry.bytes)],
    ];
    fill(
      body,
      h("dl", { class: "facts" }, fields.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      content(entry),
      h("h3", {}, "Digests"),
      h(
        "dl",
        { class: "facts digests" },
        h("dt", {}, "Content"),
        h("dd", {}, h("code", {}, entry.body_digest)),
        h("dt", {}, "Chain"),
        h("dd", {}, h("code", {}, entry.digest)),
      ),
    );
  } catch (error) {
    fill(body, h("p", { class: "problem" }, error.message));
  }
}
