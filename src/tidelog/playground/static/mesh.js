// A send from one daemon to the other, and what is in its outbox meanwhile.

import { chip, fill, h, notice } from "/dashboard/static/dom.js";
import { change, get } from "./asking.js";
import { card } from "./code.js";
import { meshSamples } from "./samples.js";

const LOOK_MS = 700;

export function meshCard(server) {
  if (server.no_mesh) {
    return h("section", { class: "card panel", id: "mesh" }, h("h2", {}, "Mesh"),
      h("p", {}, server.no_mesh));
  }
  const [sender, receiver] = server.members;
  const text = h("input", { id: "mesh-text", value: "The tide is coming in", maxlength: "500", autocomplete: "off" });
  const start = h("button", { type: "button", id: "mesh-start", onclick: () => told(begin()) }, "Start two daemons");
  const send = h("button", { type: "submit", class: "primary", id: "mesh-send" }, `Send to ${receiver}`);
  const outbox = h("p", { class: "told", role: "status" }, "Nothing was sent yet.");
  const inbox = h("ul", { "aria-label": `Inbox of ${receiver}`, tabindex: "0" });
  const states = Object.fromEntries(server.members.map((name) => [name, h("span", { class: "state" })]));
  const form = h("form", { class: "ask" }, h("div", {}, h("label", { for: "mesh-text" }, `Message from ${sender}`), text), send, start);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    told(sendWhenTheyRun(text.value || "…"));
  });
  let running; // a promise, from the first press of either button on

  async function sendWhenTheyRun(said) {
    outbox.textContent = running ? outbox.textContent : "Starting the two daemons first …";
    await begin();
    follow(await change("sends", { sender, text: said }));
  }

  function begin() {
    running ??= startDaemons();
    return running;
  }

  async function startDaemons() {
    start.disabled = true;
    start.textContent = "Starting …";
    try {
      show(await change("daemons"));
      start.textContent = "Both run";
      setInterval(() => get("daemons").then(show, () => {}), LOOK_MS);
    } catch (error) {
      start.disabled = false;
      start.textContent = "Start two daemons";
      outbox.textContent = "Nothing was sent yet.";
      running = undefined;
      throw error;
    }
  }

  function follow(row) {
    outbox.textContent = `On ${sender}'s disk as ${row.id ?? row.client_message_id}: ${row.status}.`;
  }

  function show(daemons) {
    for (const [name, daemon] of Object.entries(daemons)) {
      fill(states[name], chip(daemon.connected ? "connected" : "waiting", daemon.connected ? "good" : "warn"));
    }
    const own = daemons[sender];
    if (own && own.waiting === 0 && outbox.textContent.startsWith("On ")) {
      outbox.textContent = outbox.textContent.replace(/: [a-z]+\.$/, ": done, the broker has it.");
    }
    fill(inbox, (daemons[receiver]?.inbox ?? []).map((body) => h("li", {}, body)));
    inbox.scrollTop = inbox.scrollHeight;
  }

  const panes = h(
    "div",
    { class: "panes" },
    h("section", { class: "pane", data: { daemon: sender } }, h("header", {}, h("h3", {}, `${sender}'s daemon`), states[sender]), h("ul", {}), outbox),
    h("section", { class: "pane", data: { daemon: receiver } }, h("header", {}, h("h3", {}, `${receiver}'s inbox`), states[receiver]), inbox),
  );
  // Somebody may have started them before: in another tab, or before a reload.
  get("daemons").then((daemons) => Object.keys(daemons).length && told(begin()), () => {});
  return card(
    "mesh",
    "Mesh: sent once, whoever dies",
    "A daemon beside each program takes a message to its disk and brings it to the other one exactly once, whichever of them dies on the way.",
    [form, panes],
    meshSamples(server),
  );
}

function told(promise) {
  promise.catch((error) => notice(error.message, "bad"));
}
