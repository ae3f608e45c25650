// Two panes of one channel, each with a connection of its own, as two devices would have.

import { chip, fill, h, notice } from "/dashboard/static/dom.js";
import { Tidelog } from "/tidelog.js";
import { change, get } from "./asking.js";
import { card } from "./code.js";
import { channelSamples } from "./samples.js";

const REWIND = 20;
const NAMES = ["ada", "bo"];

export function channelsCard(server) {
  if (!server.app) {
    return h("section", { class: "card panel", id: "channels" }, h("h2", {}, "Channels"),
      h("p", {}, "This server has apps of its own in place of the development app, and their secrets are not shown to a page."));
  }
  const panes = NAMES.map((name) => new Pane(server, name));
  const question = h("input", { id: "question", value: "Why does the tide come in?", maxlength: "500", autocomplete: "off" });
  const form = h(
    "form",
    { class: "ask" },
    h("div", {}, h("label", { for: "question" }, "Say something as ada"), question),
    h("button", { type: "submit", id: "publish" }, "Publish"),
    h("button", { type: "button", class: "primary", id: "stream", onclick: () => stream(question.value) }, "Stream an answer"),
    h("button", { type: "button", class: "danger", id: "stop", onclick: stop }, "Stop"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    panes[0].willSend("The message");
    told(panes[0].channel.publish("ai-input", question.value));
  });

  function stream(text) {
    told(change("answers", { question: text || "?", client_id: NAMES[0] }));
  }
  // From the second device: whoever may cancel runs of others can stop what ada asked for.
  // If that one is cut off, from the first: what is said without a connection waits for one.
  function stop() {
    const pane = panes[1].isCut ? panes[0] : panes[1];
    pane.willSend("The stop");
    told(pane.channel.cancel({ all: true }));
  }
  return card(
    "channels",
    "Channels: messages that grow",
    "Two devices follow one channel. Stream an answer, stop it from the other device, reload in the middle, or cut a connection and see how it catches up.",
    [form, h("div", { class: "panes" }, panes.map((pane) => pane.element))],
    channelSamples(server),
  );
}

class Pane {
  constructor(server, name) {
    this.name = name;
    this.missed = 0;
    this.tide = new Tidelog({
      key: server.app.key,
      token: async () => (await get(`token?client_id=${name}`)).token,
    });
    this.channel = this.tide.subscribe(server.channel, { rewind: REWIND });
    this.list = h("ol", { "aria-label": `What ${name} sees`, tabindex: "0" });
    this.state = h("span", { class: "state" });
    this.cut = h("button", { type: "button", class: "small", onclick: () => this.toggle() }, "Cut the connection");
    this.told = h("p", { class: "told", role: "status" });
    this.element = h(
      "section",
      { class: "pane", data: { pane: name } },
      h("header", {}, h("h3", {}, name), this.state, this.cut),
      this.list,
      this.told,
    );
    this.isCut = false;
    this.show([]);
    this.channel.onChange((messages) => this.show(messages));
    this.channel.on("version", () => this.count());
    this.channel.on("reset", (reset) => (this.told.textContent = `Told to reset: ${reset.reason}. Everything was read anew.`));
    this.channel.on("error", (error) => (this.told.textContent = error.message));
    this.tide.on("state", (state) => this.showState(state));
    this.showState(this.tide.state);
  }

  show(messages) {
    const shown = messages.slice(-REWIND).filter((message) => message.name !== undefined && !isBookkeeping(message));
    fill(this.list, shown.length ? shown.map(row) : h("li", { class: "facts-line" }, "Nothing yet. Publish something, or stream an answer."));
    this.list.scrollTop = this.list.scrollHeight;
  }

  // After a cut: what comes until the subscription is live again was missed, and is sent again.
  count() {
    if (this.catching) {
      this.missed += 1;
      this.told.textContent = `Connected again: ${this.missed === 1 ? "1 operation that was" : `${this.missed} operations that were`} missed came, in order.`;
    }
  }

  willSend(what) {
    if (this.isCut) {
      this.told.textContent = `Cut off. ${what} is sent when ${this.name} is connected again.`;
    }
  }

  toggle() {
    this.isCut = !this.isCut;
    if (this.isCut) {
      this.tide.disconnect();
      this.told.textContent = "Cut off. The others go on.";
    } else {
      this.missed = 0;
      this.catching = true;
      this.tide.connect();
      setTimeout(() => (this.catching = false), 1000);
    }
    this.cut.textContent = this.isCut ? "Connect again" : "Cut the connection";
  }

  showState(state) {
    fill(this.state, chip(state, state === "connected" ? "good" : "warn"));
    this.element.dataset.state = state;
  }
}

function isBookkeeping(message) {
  return message.name.startsWith("ai-run-") || message.name.startsWith("ai-step-");
}

function row(message) {
  const is = message.streaming ? "streaming" : "";
  const status = message.status && message.status !== "complete" ? chip(message.status, message.streaming ? "live" : "warn") : null;
  const shown = message.name === "ai-cancel" ? "asked to stop" : message.text;
  return h(
    "li",
    { class: `message ${is}`.trim(), data: { serial: message.serial, status: message.status } },
    h("span", { class: "name" }, message.name === "ai-output" ? "answer" : (message.clientId ?? message.name), " ", status),
    h("span", { class: "text" }, shown),
  );
}

function told(promise) {
  promise.catch((error) => notice(error.message, "bad"));
}
