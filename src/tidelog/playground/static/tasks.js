// Two offline task lists of one partition.

import { chip, fill, h, notice } from "/dashboard/static/dom.js";
import { get } from "./asking.js";
import { card } from "./code.js";
import { taskSamples } from "./samples.js";
import { SyncList } from "./sync.js";

export async function tasksCard(server) {
  if (!server.sync) {
    return h("section", { class: "card panel", id: "sync" }, h("h2", {}, "Sync: an offline task list"),
      h("p", {}, "This server verifies tokens of sync with a key of its own, which is not shown to a page."));
  }
  const { token } = await get("sync-token?client_id=javascript");
  const lists = server.members.map((name) => new TaskPane(server, name));
  return card(
    "sync",
    "Sync: work offline, agree later",
    "Two people share a list. Take one offline, change the list in both, and let it come back: what was written offline waits as a draft, then gets its position in the one order.",
    h("div", { class: "panes" }, lists.map((list) => list.element)),
    taskSamples(server, token),
  );
}

class TaskPane {
  constructor(server, name) {
    const address = new URL("/sync", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.sync = new SyncList({
      url: address.href,
      // A client id has one connection, so every tab is a client of its own.
      clientId: `${name}${tabLetters()}`,
      token: async (clientId) => (await get(`sync-token?client_id=${clientId}`)).token,
      partition: server.partition,
      onChange: () => this.show(),
      onRefused: (text) => notice(`${name}: ${text}`, "bad"),
    });
    this.list = h("ul", { "aria-label": `Tasks of ${name}`, tabindex: "0" });
    this.state = h("span", { class: "state" });
    this.offline = h("button", { type: "button", class: "small", onclick: () => this.toggle() }, "Go offline");
    const text = h("input", { placeholder: "A task", "aria-label": `A task of ${name}`, maxlength: "200", autocomplete: "off" });
    const form = h("form", {}, text, h("button", { type: "submit" }, "Add"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (text.value.trim()) {
        this.sync.push({ id: crypto.randomUUID(), text: text.value.trim() });
        text.value = "";
      }
    });
    this.told = h("p", { class: "told", role: "status" });
    this.element = h(
      "section",
      { class: "pane", data: { list: name } },
      h("header", {}, h("h3", {}, name), this.state, this.offline),
      this.list,
      form,
      this.told,
    );
    this.sync.start();
    this.show();
  }

  toggle() {
    if (this.sync.isOffline) {
      this.sync.start();
    } else {
      this.sync.stop();
    }
    this.offline.textContent = this.sync.isOffline ? "Go online" : "Go offline";
    this.show();
  }

  show() {
    const { state, drafts } = this.sync;
    fill(this.state, chip(state, state === "online" ? "good" : "warn"));
    this.element.dataset.state = state;
    fill(this.list, this.sync.view().map((task) => this.row(task)));
    this.told.textContent = drafts.length
      ? `${drafts.length} ${drafts.length === 1 ? "draft waits" : "drafts wait"} for the server.`
      : `All committed, up to position ${this.sync.last}.`;
  }

  row(task) {
    const box = h("input", { type: "checkbox", id: `${this.element?.dataset.list ?? ""}-${task.id}`, onchange: () => this.sync.update(task.id, { done: box.checked }) });
    box.checked = Boolean(task.done);
    return h(
      "li",
      { class: `task ${task.done ? "done" : ""}`.trim() },
      box,
      h("label", { for: box.id }, task.text),
      h("button", { type: "button", class: "small quiet", "aria-label": `Delete ${task.text}`, onclick: () => this.sync.remove(task.id) }, "×"),
    );
  }
}

// Four letters that a reload of this tab keeps.
function tabLetters() {
  let letters = sessionStorage.getItem("tidelog-tab");
  if (!letters) {
    letters = Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => String.fromCharCode(97 + (byte % 26))).join("");
    sessionStorage.setItem("tidelog-tab", letters);
  }
  return letters;
}
