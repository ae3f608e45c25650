// A line chart over the last five minutes, in SVG. The chart libraries that ship in wheels are
// megabytes of script; what two lines, an axis and a crosshair need is the 160 lines below.

import { h } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const SPAN_MS = 300_000;
const HEIGHT = 168;
const EDGE = { left: 48, right: 10, top: 10, bottom: 22 };

function svg(tag, attributes, text) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  if (text !== undefined) {
    element.textContent = text;
  }
  return element;
}

// The next of 1, 2, 5, 10, 20 ... that is not smaller.
function niceMaximum(value, least) {
  const wanted = Math.max(value, least);
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= wanted);
}

// Points without a gap between them; where there is nothing to show a line is broken.
function runs(points) {
  const found = [[]];
  for (const [x, y] of points) {
    if (y !== null) {
      found.at(-1).push(`${x.toFixed(1)} ${y.toFixed(1)}`);
    } else if (found.at(-1).length) {
      found.push([]);
    }
  }
  return found.filter((run) => run.length);
}

// A run of one point is drawn too, as a dot.
const line = (run) => `M${run.join("L")}${run.length === 1 ? "h0" : ""}`;

const area = (run, bottom) => `M${run[0].split(" ")[0]} ${bottom}L${run.join("L")}L${run.at(-1).split(" ")[0]} ${bottom}Z`;

export class Chart {
  // series: [{ key, label, tone }]; format: (value) => text; least: smallest top of the axis.
  constructor({ title, series, format, least }) {
    this.series = series;
    this.format = format;
    this.least = least;
    this.samples = [];
    this.pointed = null; // time under the pointer
    this.values = new Map(series.map(({ key }) => [key, h("b", {}, "–")]));
    this.when = h("span", { class: "muted" }, "now");
    this.drawing = svg("svg", { role: "img", "aria-label": `${title}, last five minutes`, height: HEIGHT });
    this.element = h(
      "figure",
      { class: "chart panel" },
      h(
        "figcaption",
        {},
        h("h2", {}, title),
        h(
          "p",
          { class: "legend" },
          series.map(({ key, label, tone }) =>
            h("span", {}, h("i", { class: `swatch ${tone}` }), `${label} `, this.values.get(key)),
          ),
          this.when,
        ),
      ),
      this.drawing,
    );
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.drawing);
  }

  update(samples) {
    this.samples = samples;
    this.draw();
  }

  leave() {
    this.observer.disconnect();
  }

  point(event) {
    if (event === null || !this.samples.length) {
      this.pointed = null;
    } else {
      const box = this.drawing.getBoundingClientRect();
      const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
      this.pointed = this.end() - SPAN_MS * (1 - Math.min(1, Math.max(0, share)));
    }
    this.draw();
  }

  end() {
    return this.samples.at(-1)?.at ?? Date.now();
  }

  shown() {
    if (this.pointed === null) {
      return this.samples.at(-1);
    }
    const distance = (sample) => Math.abs(sample.at - this.pointed);
    return this.samples.reduce((best, sample) => (distance(sample) < distance(best) ? sample : best));
  }

  draw() {
    const width = this.drawing.clientWidth;
    if (!width) {
      return;
    }
    const values = this.samples.flatMap((sample) => this.series.map(({ key }) => sample[key] ?? 0));
    const top = niceMaximum(Math.max(0, ...values), this.least);
    const end = this.end();
    const inner = width - EDGE.left - EDGE.right;
    const x = (at) => EDGE.left + inner * (1 - (end - at) / SPAN_MS);
    const y = (value) => EDGE.top + (HEIGHT - EDGE.top - EDGE.bottom) * (1 - value / top);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(top * share);
      parts.push(svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }));
      parts.push(svg("text", { x: EDGE.left - 8, y: at + 4, "text-anchor": "end" }, this.format(top * share)));
    }
    for (const minutes of [5, 4, 3, 2, 1, 0]) {
      const text = minutes ? `−${minutes} min` : "now";
      const anchor = minutes === 5 ? "start" : minutes ? "middle" : "end";
      if (inner > 380 || minutes % 5 === 0) {
        parts.push(svg("text", { x: x(end - minutes * 60_000), y: HEIGHT - 5, "text-anchor": anchor }, text));
      }
    }
    const visible = this.samples.filter((sample) => sample.at >= end - SPAN_MS);
    // The first series last, so that it lies above the others.
    for (const { key, tone } of this.series.toReversed()) {
      const points = visible.map((sample) => [x(sample.at), sample[key] === null ? null : y(sample[key])]);
      const found = runs(points);
      parts.push(svg("path", { class: `area ${tone}`, d: found.map((run) => area(run, y(0))).join("") }));
      parts.push(svg("path", { class: `line ${tone}`, d: found.map(line).join("") }));
    }
    const shown = this.shown();
    if (shown && this.pointed !== null) {
      parts.push(svg("line", { class: "cross", x1: x(shown.at), x2: x(shown.at), y1: EDGE.top, y2: y(0) }));
    }
    for (const { key } of this.series) {
      this.values.get(key).textContent = this.format(shown?.[key] ?? null);
    }
    this.when.textContent =
      shown && this.pointed !== null ? `${Math.round((end - shown.at) / 1000)} s ago` : "now";
    this.drawing.replaceChildren(...parts);
  }
}
