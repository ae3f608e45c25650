// Sync clients of this node, the one that is furthest behind first.

import { get } from "./api.js";
import { chip, empty, fill, h, table } from "./dom.js";
import { count } from "./format.js";
import { kept } from "./kept.js";

const TONES = { live: "good", "catching up": "warn", idle: "" };

export function syncView(root, { feed }) {
  const body = h("div", {});
  fill(
    root,
    h("h1", {}, "Sync clients"),
    h(
      "p",
      { class: "muted lead" },
      "A live client is sent every event as it is committed. The others lag by the positions from their " +
        "cursor, the end of the last page they were sent, to what they ask for.",
    ),
    body,
  );
  const columns = [
    { name: "Client", wide: true, cell: (row) => h("strong", {}, row.client) },
    { name: "Profile", cell: (row) => row.profile },
    { name: "State", cell: (row) => chip(row.state, TONES[row.state]) },
    { name: "Cursor", numeric: true, cell: (row) => count(row.cursor) },
    { name: "Lag", numeric: true, cell: (row) => count(row.lag) },
    { name: "In commit", numeric: true, cell: (row) => count(row.waiting) },
    {
      name: "Subscribed to",
      wide: true,
      cell: (row) =>
        row.partition_count
          ? [row.partitions.join(", "), row.partition_count > row.partitions.length ? " …" : ""]
          : h("span", { class: "muted" }, "nothing yet"),
    },
  ];
  return kept(feed, "sync", body, async () => {
    const found = await get("sync");
    if (!found.is_served) {
      return empty("This server does not serve sync. Set sync.jwt_secret or sync.jwt_key_file.");
    }
    return [
      h(
        "p",
        { class: "facts-line" },
        `${count(found.count)} connected · last event ${count(found.last_event)} · model version ${found.model_version}`,
      ),
      found.clients.length ? table("Sync clients", columns, found.clients) : empty("No client is connected."),
    ];
  });
}
