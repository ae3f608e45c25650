// The tail of the log, newest first, with filters; nothing is missing without a line that says so.

import { get } from "./api.js";
import { openEntry } from "./dialog.js";
import { chip, fill, h, notice } from "./dom.js";
import { bytes, count, time } from "./format.js";

const MAX_ROWS = 500;
const MAX_ROWS_WITH_OLDER = 5000;
const FILTERS = ["surface", "stream", "kind", "actor"];

// A page that was asked for by a view that is gone is not taken for this one's.
let tags = 0;
function nextTag() {
  tags += 1;
  return tags;
}

function row(entry) {
  return h(
    "li",
    { class: "entry-row", data: { id: entry.id } },
    h("button", { type: "button", class: "id", onclick: () => openEntry(entry.id) }, count(entry.id)),
    h("time", { class: "muted" }, time(entry.at)),
    chip(entry.surface, entry.surface),
    h("span", { class: "kind" }, entry.kind),
    h("span", { class: "stream" }, entry.stream),
    h("span", { class: "actor muted" }, entry.actor),
    h("span", { class: "size muted number" }, bytes(entry.bytes)),
  );
}

function gap(text) {
  return h("li", { class: "gap" }, text);
}

export function logView(root, { feed, parameters, link }) {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, parameters.get(name) ?? ""]));
  const list = h("ol", { class: "entries panel", "aria-label": "Entries, newest first" });
  const nothing = h("p", { class: "empty", hidden: true }, "No entry matches. New ones appear here as they are committed.");
  const older = h("button", { type: "button", class: "quiet", hidden: true }, "Show older entries");
  let last = null; // position up to which the list is complete; null before the first page
  let first = 0; // position after which it is complete
  let isPaused = false;
  let mostRows = MAX_ROWS;
  const tag = nextTag();

  const surface = h(
    "select",
    { id: "filter-surface", name: "surface" },
    ["", "channels", "sync", "mesh"].map((name) =>
      h("option", { value: name, selected: name === wanted.surface }, name || "all"),
    ),
  );
  const field = (name, label, hint) => [
    h("label", { for: `filter-${name}` }, label),
    h("input", { id: `filter-${name}`, name, value: wanted[name], placeholder: hint, autocomplete: "off", spellcheck: "false" }),
  ];
  const pause = h("button", { type: "button", class: "quiet", "aria-pressed": "false" }, "Pause");
  const form = h(
    "form",
    { class: "filters" },
    h("div", {}, h("label", { for: "filter-surface" }, "Surface"), surface),
    h("div", {}, field("stream", "Stream begins with", "channels/app-id/")),
    h("div", {}, field("kind", "Kind begins with", "message.")),
    h("div", {}, field("actor", "Actor begins with", "")),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Filter"), pause),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = FILTERS.map((name) => [name, form.elements[name].value.trim()]).filter(([, value]) => value);
    location.hash = link("log", Object.fromEntries(given));
  });
  surface.addEventListener("change", () => form.requestSubmit());

  const trim = () => {
    let isCut = false;
    while (list.children.length > mostRows || (isCut && !list.lastElementChild?.dataset.id)) {
      list.lastElementChild.remove();
      isCut = true;
    }
    if (isCut) {
      first = Math.max(first, Number(list.lastElementChild.dataset.id) - 1);
    }
  };
  const show = () => {
    nothing.hidden = list.children.length > 0;
    list.hidden = list.children.length === 0;
    older.hidden = first <= 0;
  };
  const prepend = (entries, before) => {
    list.prepend(...entries.map(row).reverse());
    if (before) {
      // Above what was there, below what came now.
      const place = list.children[entries.length] ?? null;
      list.insertBefore(gap(before), place);
    }
    trim();
    show();
  };

  const off = [
    feed.on("page", (message) => {
      if (message.tag !== tag) {
        return;
      }
      if (last === null) {
        first = message.low;
        list.replaceChildren();
        prepend(message.entries);
      } else {
        const cut = message.low > message.after;
        prepend(
          message.entries,
          cut ? `Entries from ${count(message.after + 1)} to ${count(message.low)} are not shown.` : "",
        );
      }
      last = message.through;
    }),
    feed.on("entries", (message) => {
      if (last === null || isPaused) {
        return;
      }
      last = message.position;
      if (message.entries.length || message.more) {
        prepend(message.entries, message.more ? `${count(message.more)} more entries came here at once.` : "");
      }
    }),
  ];
  const follow = () => feed.wish("follow", () => ({ type: "follow", filter: wanted, since: last, tag }));
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Continue" : "Pause";
    if (isPaused) {
      feed.unwish("follow", { type: "rest" });
    } else {
      follow();
    }
  });
  older.addEventListener("click", async () => {
    try {
      const page = await get("log", { ...wanted, before: first + 1 });
      list.append(...page.entries.map(row).reverse());
      mostRows = Math.min(MAX_ROWS_WITH_OLDER, list.children.length + MAX_ROWS);
      first = page.low;
      show();
    } catch (error) {
      notice(error.message, "bad");
    }
  });
  fill(root, h("h1", {}, "Log"), form, list, nothing, older);
  follow();
  return () => {
    off.forEach((end) => end());
    feed.unwish("follow", { type: "rest" });
  };
}
