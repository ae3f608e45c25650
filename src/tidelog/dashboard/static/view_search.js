// Messages by their words, from the index that the pipeline builds.

import { get } from "./api.js";
import { openEntry } from "./dialog.js";
import { empty, fill, h } from "./dom.js";
import { ago, count, time } from "./format.js";

// Places are counted in characters, not in the halves that JavaScript counts.
function marked(text, highlights) {
  const letters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const [begin, end] of highlights) {
    parts.push(letters.slice(at, begin).join(""), h("mark", {}, letters.slice(begin, end).join("")));
    at = end;
  }
  return [...parts, letters.slice(at).join("")];
}

function hit(found, link) {
  const stream = `channels/${found.app_id}/${found.channel}`;
  return h(
    "li",
    { class: "panel" },
    h(
      "p",
      { class: "hit-head" },
      h("a", { href: link("channels", { stream }) }, found.channel),
      found.name ? h("span", {}, found.name) : null,
      h("time", { class: "muted", title: time(found.updated_at) }, ago(found.updated_at)),
      h("button", { type: "button", class: "quiet small", onclick: () => openEntry(found.committed_id) }, `Entry ${count(found.committed_id)}`),
    ),
    h("p", { class: "snippet" }, marked(found.snippet, found.highlights)),
  );
}

export function searchView(root, { parameters, link }) {
  const query = parameters.get("q") ?? "";
  const body = h("div", { "aria-live": "polite" });
  const input = h("input", { id: "query", name: "q", type: "search", value: query, maxlength: 1000, autocomplete: "off" });
  const form = h(
    "form",
    { class: "search", role: "search" },
    h("label", { for: "query" }, "Words of messages"),
    h("div", {}, input, h("button", { type: "submit", class: "primary" }, "Search")),
    h("p", { class: "muted" }, 'Words, "phrases", AND, OR, -not. The index is as fresh as the pipeline.'),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = link("search", { q: input.value.trim() });
  });
  fill(root, h("h1", {}, "Search"), form, body);
  if (!query) {
    input.focus();
    return null;
  }
  get("search", { q: query }).then(
    (found) => {
      if (found.problem) {
        fill(body, empty(found.problem));
        return;
      }
      fill(
        body,
        h("p", { class: "facts-line" }, `${count(found.total)} ${found.total === 1 ? "message fits" : "messages fit"} · index through ${count(found.through)}`),
        found.hits.length
          ? h("ol", { class: "hits" }, found.hits.map((each) => hit(each, link)))
          : empty("Nothing fits."),
      );
    },
    (error) => fill(body, h("p", { class: "problem" }, error.message)),
  );
  return null;
}
