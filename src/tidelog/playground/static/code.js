// The lines that do it, in several languages, ready to copy.

import { h } from "/dashboard/static/dom.js";

let numbered = 0;

//   samples: { Python: "...", JavaScript: "...", curl: "..." }
export function code(samples) {
  const names = Object.keys(samples);
  const id = `code-${(numbered += 1)}`;
  const text = h("pre", { tabindex: "0" });
  const panel = h("div", { role: "tabpanel", id: `${id}-panel` }, text);
  const tabs = names.map((name) =>
    h("button", { type: "button", role: "tab", id: `${id}-${name}`, "aria-controls": `${id}-panel`, onclick: () => show(name) }, name),
  );
  const copy = h("button", { type: "button", class: "small quiet copy", onclick: take }, "Copy");

  function show(name) {
    text.textContent = samples[name];
    text.dataset.language = name;
    panel.setAttribute("aria-labelledby", `${id}-${name}`);
    tabs.forEach((tab, index) => {
      const chosen = names[index] === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    });
  }

  async function take() {
    try {
      await navigator.clipboard.writeText(text.textContent);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Select it"; // the browser forbids it
    }
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  }

  const list = h("div", { role: "tablist", "aria-label": "Language", onkeydown: turn }, tabs);
  function turn(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const next = (names.indexOf(text.dataset.language) + step + names.length) % names.length;
      show(names[next]);
      tabs[next].focus();
    }
  }
  const element = h("div", { class: "code" }, h("div", { class: "bar" }, list, copy), panel);
  show(names[0]);
  return element;
}

export function card(id, title, lead, shown, samples) {
  return h(
    "section",
    { class: "card panel", id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title),
    h("p", {}, lead),
    h("div", { class: "parts" }, h("div", {}, shown), code(samples)),
  );
}
