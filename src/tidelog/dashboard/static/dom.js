// Elements are made here and nowhere else. Text always becomes a text node: whatever a message,
// a name or an error holds, it is shown and never read as markup.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) {
      continue;
    }
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...kept(children));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...kept(children));
  return element;
}

function kept(children) {
  return children
    .flat(3)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

// A table whose cells know the name of their column: on a phone each row becomes a card.
//   columns: [{ name, cell: (row) => child, numeric, wide }]
export function table(caption, columns, rows, rowProperties = () => ({})) {
  return h(
    "table",
    { class: "cards" },
    h("caption", { class: "unseen" }, caption),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map((column) =>
          h("th", { scope: "col", class: column.numeric ? "number" : null }, column.name),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          rowProperties(row),
          columns.map((column) =>
            h(
              "td",
              {
                data: { label: column.name },
                class: [column.numeric ? "number" : "", column.wide ? "wide" : ""].join(" ").trim() || null,
              },
              column.cell(row),
            ),
          ),
        ),
      ),
    ),
  );
}

export function chip(text, tone = "") {
  return h("span", { class: `chip ${tone}`.trim() }, text);
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

export function notice(text, tone = "") {
  const element = h("p", { class: `notice ${tone}`.trim() }, text);
  document.getElementById("notices").append(element);
  setTimeout(() => element.remove(), 8000);
}
