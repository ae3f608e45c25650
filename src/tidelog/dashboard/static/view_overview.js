// The last five minutes of the committer, and what the server holds right now.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { chip, fill, h, table } from "./dom.js";
import { bytes, count, milliseconds, rate } from "./format.js";

const TILES = [
  ["entries", "Entries per second", rate],
  ["commits", "Commits per second", rate],
  ["p99_ms", "Commit latency, p99", milliseconds],
  ["connections", "Connections", count],
  ["queue", "Commit queue", count],
  ["lag", "Tail lag, entries", count],
  ["refusals", "Refused", count],
  ["slow", "Slow readers", count],
];

const PROCESSES_MS = 5000;

// The share of a processor that a process took between two looks at it; nothing at the first.
function share(now, before) {
  const former = before?.processes.find((each) => each.name === now.name && each.began === now.began);
  const seconds = (now.at - (before?.at ?? now.at)) / 1000;
  return former && seconds > 0 ? `${count(((now.cpu_seconds - former.cpu_seconds) / seconds) * 100)} %` : "–";
}

export function overviewView(root, { feed, link }) {
  const values = new Map(TILES.map(([key]) => [key, h("dd", {}, "–")]));
  const rates = new Chart({
    title: "Commit rate",
    series: [
      { key: "entries", label: "entries/s", tone: "first" },
      { key: "commits", label: "commits/s", tone: "second" },
    ],
    format: rate,
    least: 10,
  });
  const latency = new Chart({
    title: "Commit latency",
    series: [
      { key: "p50_ms", label: "p50", tone: "first" },
      { key: "p99_ms", label: "p99", tone: "second" },
    ],
    format: milliseconds,
    least: 1,
  });
  const surfaces = h("section", { class: "panel" });
  const processes = h("section", { class: "panel" });
  fill(
    root,
    h("h1", {}, "Overview"),
    h(
      "dl",
      { class: "tiles" },
      TILES.map(([key, label]) => h("div", { class: "panel" }, h("dt", {}, label), values.get(key))),
    ),
    h("div", { class: "charts" }, rates.element, latency.element),
    surfaces,
    processes,
  );

  let before = null;
  const showProcesses = async () => {
    const shown = await get("processes").catch(() => null);
    if (!shown) {
      return; // the feed says that there is no answer
    }
    const at = Date.now();
    fill(
      processes,
      h("h2", {}, "Processes"),
      table(
        "What each process of the server takes",
        [
          { name: "Process", cell: (each) => each.name },
          { name: "Memory", numeric: true, cell: (each) => bytes(each.memory) },
          { name: "Processor", numeric: true, cell: (each) => share({ ...each, at }, before) },
          { name: "Open files", numeric: true, cell: (each) => count(each.open_files) },
          { name: "Connections", numeric: true, cell: (each) => count(each.connections) },
        ],
        shown.processes,
      ),
    );
    before = { at, processes: shown.processes };
  };
  const looking = setInterval(showProcesses, PROCESSES_MS);
  showProcesses();

  const showSample = () => {
    const sample = feed.samples.at(-1);
    for (const [key, , format] of TILES) {
      values.get(key).textContent = sample ? format(sample[key]) : "–";
    }
    rates.update(feed.samples);
    latency.update(feed.samples);
  };
  const showSurfaces = () => {
    fill(
      surfaces,
      h("h2", {}, "Since this page was opened"),
      table(
        "Entries written by surface since this page was opened",
        [
          { name: "Surface", cell: (name) => chip(name, name) },
          { name: "Entries", numeric: true, cell: (name) => count(feed.written[name] ?? 0) },
          { name: "Tail", cell: (name) => h("a", { href: link("log", { surface: name }) }, `Log of ${name}`) },
        ],
        ["channels", "sync", "mesh"],
      ),
    );
  };
  showSample();
  showSurfaces();
  const off = [
    feed.on("hello", showSample),
    feed.on("sample", () => {
      showSample();
      showSurfaces();
    }),
  ];
  return () => {
    clearInterval(looking);
    off.forEach((end) => end());
    rates.leave();
    latency.leave();
  };
}
