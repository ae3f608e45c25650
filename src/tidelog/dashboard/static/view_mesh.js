// Meshes: members and whether they are here, what waits, and what became of the last messages.

import { get } from "./api.js";
import { chip, empty, fill, h, table } from "./dom.js";
import { ago, count, short, time } from "./format.js";
import { kept } from "./kept.js";

const TONES = { delivered: "good", pending: "warn", claimed: "warn", dead: "bad" };

const MEMBERS = [
  { name: "Name", wide: true, cell: (row) => h("strong", {}, row.name) },
  { name: "Key", cell: (row) => h("code", { title: row.key }, short(row.key)) },
  {
    name: "State",
    cell: (row) =>
      row.revoked_at ? chip("revoked", "bad") : row.is_here ? chip("connected", "good") : chip("away"),
  },
  { name: "Waiting for it", numeric: true, cell: (row) => count(row.waiting) },
  { name: "Joined", cell: (row) => h("time", { title: time(row.joined_at) }, ago(row.joined_at)) },
];

function delivery(row) {
  const word = row.status === "delivered" ? "delivered" : `${row.status}, tried ${row.attempts}×`;
  const text = `${short(row.recipient, 18)}: ${word}`;
  return h("li", {}, chip(text, TONES[row.status] ?? ""), row.error ? h("span", { class: "muted" }, ` ${row.error}`) : null);
}

const SENDS = [
  { name: "No.", numeric: true, cell: (row) => count(row.serial) },
  { name: "Time", cell: (row) => h("time", {}, time(row.at)) },
  { name: "From", cell: (row) => row.sender },
  { name: "To", cell: (row) => [chip(row.kind), " ", short(row.to, 24)] },
  {
    name: "Deliveries",
    wide: true,
    cell: (row) => {
      const total = Object.values(row.states).reduce((sum, number) => sum + number, 0);
      if (!total) {
        return h("span", { class: "muted" }, "nobody is to get it");
      }
      const rest = total - row.deliveries.length;
      return h(
        "ul",
        { class: "deliveries" },
        row.deliveries.map(delivery),
        rest > 0 ? h("li", { class: "muted" }, `and ${count(rest)} more`) : null,
      );
    },
  },
];

export function meshView(root, { feed, parameters, link }) {
  const body = h("div", {});
  fill(root, h("h1", {}, "Mesh"), body);
  return kept(feed, "mesh", body, async () => {
    const { is_served: isServed, meshes } = await get("mesh");
    if (!meshes.length) {
      return empty(
        isServed
          ? "There is no mesh yet. Create one: tidelog mesh create"
          : "This server does not serve meshes. Set admin_token.",
      );
    }
    const mesh = meshes.find(({ id }) => id === parameters.get("mesh")) ?? meshes[0];
    const found = await get(`mesh/${encodeURIComponent(mesh.id)}`);
    const present = found.members.filter((member) => member.is_here).length;
    return [
      meshes.length > 1
        ? h(
            "p",
            { class: "choices", role: "group", "aria-label": "Meshes" },
            meshes.map(({ id, slug }) =>
              h("a", { href: link("mesh", { mesh: id }), "aria-current": id === mesh.id ? "true" : null }, slug),
            ),
          )
        : null,
      h(
        "p",
        { class: "facts-line" },
        `${mesh.slug} · ${count(found.members.length)} members, ${count(present)} connected · deliveries pending `,
        `${count(found.waiting.pending ?? 0)}, claimed ${count(found.waiting.claimed ?? 0)}`,
      ),
      h("h2", {}, "Members"),
      found.members.length ? table("Members", MEMBERS, found.members) : empty("Nobody has joined yet."),
      h("h2", {}, "Newest messages"),
      found.sends.length ? table("Newest messages", SENDS, found.sends) : empty("Nothing was sent yet."),
    ];
  });
}
