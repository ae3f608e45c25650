// The outboxes of daemons on the server's machine. What is changed is asked of the daemon itself.

import { change, get } from "./api.js";
import { confirmed } from "./dialog.js";
import { chip, empty, fill, h, notice, table } from "./dom.js";
import { count, milliseconds, short, time } from "./format.js";
import { kept } from "./kept.js";

const STATUSES = { "": "all", pending: "pending", inflight: "inflight", dead: "dead", done: "done", aborted: "aborted", lost: "possibly lost" };
const TONES = { pending: "warn", inflight: "warn", dead: "bad", done: "good", aborted: "" };
const RETIRABLE = ["pending", "dead"];

const QUESTIONS = {
  requeue: {
    title: "Send this message again?",
    action: "Requeue",
    tone: "primary",
    text: "Its row is retired and its content is sent under a fresh id.",
    risk: "The broker may have it already. Then it will be there twice.",
    done: "Requeued under a fresh id.",
  },
  drop: {
    title: "Give this message up?",
    action: "Drop",
    tone: "danger",
    text: "Its row is retired and is not sent any more. This cannot be undone.",
    risk: "The broker may have it already. Dropping does not take it back.",
    done: "Dropped.",
  },
};

export function outboxView(root, { feed, parameters, link }) {
  const body = h("div", {});
  const status = parameters.get("status") ?? "";
  fill(root, h("h1", {}, "Outbox"), body);

  const act = async (daemon, row, what) => {
    const question = QUESTIONS[what];
    const text = [question.text, `Message ${row.client_message_id}, ${row.status}, tried ${count(row.attempts)} ${row.attempts === 1 ? "time" : "times"}.`];
    if (row.maybe_delivered) {
      text.push(question.risk);
    }
    if (!(await confirmed({ ...question, text }))) {
      return;
    }
    try {
      await change(`outbox/${encodeURIComponent(daemon)}/${what}`, { id: row.id });
      notice(question.done, "good");
    } catch (error) {
      notice(error.message, "bad");
    }
    leave.again();
  };

  const columns = (daemon) => [
    { name: "Message", wide: true, cell: (row) => h("code", { title: row.client_message_id }, short(row.client_message_id, 30)) },
    { name: "Status", cell: (row) => (row.possibly_lost ? chip("possibly lost", "bad") : chip(row.status, TONES[row.status])) },
    { name: "Tries", numeric: true, cell: (row) => count(row.attempts) },
    { name: "Accepted", cell: (row) => h("time", { title: row.enqueued_at }, time(Date.parse(row.enqueued_at))) },
    {
      name: "Outcome",
      wide: true,
      cell: (row) => {
        if (row.last_error) {
          return h("span", { class: "problem" }, row.last_error);
        }
        if (row.superseded_by) {
          return h("span", { class: "muted" }, `replaced by ${short(row.superseded_by, 14)}`);
        }
        return row.history_id ? `message ${count(row.history_id)} of the mesh` : h("span", { class: "muted" }, "–");
      },
    },
    {
      name: "Actions",
      cell: (row) =>
        RETIRABLE.includes(row.status) || row.possibly_lost
          ? h(
              "div",
              { class: "buttons" },
              Object.entries(QUESTIONS).map(([what, { action }]) =>
                h(
                  "button",
                  {
                    type: "button",
                    class: "quiet small",
                    data: { focus: `${what}-${row.id}` },
                    "aria-label": `${action} ${row.client_message_id}`,
                    onclick: () => act(daemon, row, what),
                  },
                  action,
                ),
              ),
            )
          : null,
    },
  ];

  const health = (daemon) => {
    if (daemon.error) {
      return [chip("not reachable", "bad"), h("span", { class: "muted" }, daemon.error)];
    }
    const { connected, connection_error: why, queue_depth: depth, inflight, possibly_lost: lost, lag_ms: lag, pressure } = daemon.health;
    return [
      connected ? chip("connected", "good") : chip("no broker", "warn"),
      connected || !why ? null : h("span", { class: "problem" }, why),
      lost ? chip(`${count(lost)} possibly lost`, "bad") : null,
      h("span", { class: "muted" }, `${count(depth)} wait, ${count(inflight)} under way, oldest ${milliseconds(lag)}, pressure ${pressure}`),
    ];
  };

  const leave = kept(feed, "outbox", body, async () => {
    const { home, daemons } = await get("outbox");
    if (!daemons.length) {
      return empty(`No daemon whose files this server's user can read is in ${home}.`);
    }
    const chosen = daemons.find(({ name }) => name === parameters.get("daemon")) ?? daemons[0];
    const place = (name, wanted) => link("outbox", wanted ? { daemon: name, status: wanted } : { daemon: name });
    const rows = chosen.error ? [] : (await get(`outbox/${encodeURIComponent(chosen.name)}`, { status })).items;
    return [
      h(
        "ul",
        { class: "daemons" },
        daemons.map((daemon) =>
          h(
            "li",
            { class: "panel" },
            h("a", { href: place(daemon.name, status), "aria-current": daemon === chosen ? "true" : null }, daemon.name),
            health(daemon),
          ),
        ),
      ),
      h(
        "p",
        { class: "choices", role: "group", "aria-label": "Status" },
        Object.entries(STATUSES).map(([wanted, name]) =>
          h("a", { href: place(chosen.name, wanted), "aria-current": wanted === status ? "true" : null }, name),
        ),
      ),
      rows.length ? table(`Outbox of ${chosen.name}`, columns(chosen.name), rows) : empty("Nothing here."),
    ];
  });
  return leave;
}
