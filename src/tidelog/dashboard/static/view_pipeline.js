// The lake beside the log: how far each table is, and what the checks said.

import { get } from "./api.js";
import { chip, empty, fill, h, table } from "./dom.js";
import { ago, bytes, count, time } from "./format.js";
import { kept } from "./kept.js";

export function pipelineView(root, { feed }) {
  const body = h("div", {});
  fill(root, h("h1", {}, "Pipeline"), body);
  let behind = []; // [cell, through] of every table: the head moves on

  const freshness = (through) => {
    const entries = Math.max(0, feed.position - through);
    return chip(entries ? `${count(entries)} behind` : "up to date", entries ? "warn" : "good");
  };
  const columns = [
    {
      name: "Table",
      wide: true,
      cell: (row) => [
        h("strong", {}, row.name),
        h("span", { class: "muted meaning" }, row.meaning),
        row.problem ? h("span", { class: "problem meaning" }, row.problem) : null,
      ],
    },
    { name: "Layer", cell: (row) => row.layer },
    { name: "Rows", numeric: true, cell: (row) => count(row.rows) },
    { name: "Size", numeric: true, cell: (row) => bytes(row.bytes) },
    { name: "Through", numeric: true, cell: (row) => count(row.through) },
    {
      name: "Freshness",
      cell: (row) => {
        if (row.through === undefined) {
          return h("span", { class: "muted" }, row.problem ? "unknown" : "not built");
        }
        const cell = h("span", {}, freshness(row.through));
        behind.push([cell, row.through]);
        return cell;
      },
    },
    { name: "Written", cell: (row) => (row.written_at ? h("time", { title: time(row.written_at) }, ago(row.written_at)) : "–") },
  ];
  const checks = [
    { name: "Check", wide: true, cell: (row) => h("strong", {}, row.check) },
    {
      name: "Verdict",
      cell: (row) =>
        row.problem
          ? h("span", { class: "problem" }, row.problem)
          : row.findings
            ? chip(`${count(row.findings)} findings`, "bad")
            : chip("passed", "good"),
    },
    { name: "Examined", numeric: true, cell: (row) => count(row.examined) },
    { name: "Through", numeric: true, cell: (row) => count(row.through) },
    { name: "Ran", cell: (row) => h("time", { title: time(row.ran_at) }, ago(row.ran_at)) },
    { name: "First findings", wide: true, cell: (row) => (row.first?.length ? h("ul", {}, row.first.map((text) => h("li", {}, text))) : null) },
  ];
  const leave = kept(feed, "pipeline", body, async () => {
    const found = await get("pipeline");
    if (found.problem) {
      return empty(found.problem);
    }
    behind = [];
    return [
      h("p", { class: "facts-line" }, found.root),
      h("h2", {}, "Checks"),
      found.verdicts.length ? table("Checks", checks, found.verdicts) : empty("No check has run yet: tidelog pipeline check"),
      h("h2", {}, "Tables"),
      table("Tables", columns, found.tables),
    ];
  });
  const off = feed.on("sample", () => {
    for (const [cell, through] of behind) {
      fill(cell, freshness(through));
    }
  });
  return () => {
    off();
    leave();
  };
}
