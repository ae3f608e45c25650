// Channels: which there are, and in one of them every message as it looks now, while it changes.

import { get } from "./api.js";
import { openEntry } from "./dialog.js";
import { chip, empty, fill, h, notice, table } from "./dom.js";
import { Messages } from "./fold.js";
import { ago, bytes, count, time } from "./format.js";
import { kept } from "./kept.js";

function state(message) {
  if (message.kind === "message.delete") {
    return chip("deleted", "bad");
  }
  if (message.is_open) {
    return chip("streaming", "live");
  }
  return message.kind === "event" ? chip("event") : chip(message.kind.replace("message.", ""));
}

function textOf(message) {
  if (message.text === null) {
    return h("p", { class: "muted" }, "no data");
  }
  const cut = message.is_cut ? "… " : "";
  return h("div", { class: message.is_text ? "text" : "text json" }, cut + message.text);
}

function versionItem(version) {
  return h(
    "li",
    {},
    h(
      "p",
      { class: "version-head" },
      h("button", { type: "button", class: "id", onclick: () => openEntry(version.id) }, count(version.id)),
      h("span", { class: "kind" }, version.kind.replace("message.", "")),
      h("time", { class: "muted" }, time(version.at)),
      version.client ? h("span", { class: "muted" }, version.client) : null,
      version.description ? h("em", {}, version.description) : null,
    ),
    textOf(version),
  );
}

class Card {
  constructor(message) {
    this.facts = h("p", { class: "message-head" });
    this.body = h("div", {});
    this.list = h("ol", { class: "versions", hidden: true });
    this.more = h("button", { type: "button", class: "quiet small", onclick: () => this.readVersions() }, "Older versions");
    this.oldest = null; // position of the last version that is shown
    this.shown = new Set(); // positions: what comes by the feed while a page is read may be on it too
    this.toggle = h("button", { type: "button", class: "quiet small", "aria-expanded": "false", onclick: () => this.open() });
    this.element = h("li", { class: "panel message", data: { message: message.message } }, this.facts, this.body, this.toggle, this.list);
    this.update(message);
  }

  update(message) {
    this.message = message;
    this.element.classList.toggle("streaming", message.is_open);
    fill(
      this.facts,
      h("span", { class: "muted number" }, `#${message.history_serial}`),
      message.name ? h("strong", {}, message.name) : null,
      state(message),
      message.client ? h("span", { class: "muted" }, message.client) : null,
      h("span", { class: "muted" }, bytes(message.bytes)),
      h("time", { class: "muted", title: time(message.at) }, time(message.at)),
    );
    fill(this.body, textOf(message));
    this.toggle.textContent = `${count(message.versions)} ${message.versions === 1 ? "version" : "versions"}`;
  }

  open() {
    const isOpen = this.list.hidden;
    this.list.hidden = !isOpen;
    this.toggle.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) {
      fill(this.list);
      this.shown.clear();
      this.oldest = null;
      this.readVersions();
    }
  }

  async readVersions() {
    try {
      const page = await get("versions", { message: this.message.message, before: this.oldest });
      this.more.remove();
      const unseen = page.versions.filter((version) => !this.shown.has(version.id));
      unseen.forEach((version) => this.shown.add(version.id));
      this.list.append(...unseen.map(versionItem));
      this.oldest = page.versions.at(-1)?.id ?? this.oldest;
      if (page.has_more) {
        this.list.append(h("li", {}, this.more));
      }
    } catch (error) {
      notice(error.message, "bad");
    }
  }

  add(version) {
    if (!this.list.hidden && !this.shown.has(version.id)) {
      this.shown.add(version.id);
      this.list.prepend(versionItem(version));
    }
  }
}

function channelView(root, stream, { feed, link }) {
  const channel = stream.split("/").slice(2).join("/");
  const list = h("ol", { class: "messages", "aria-label": `Messages of ${channel}, newest first` });
  const nothing = h("div", {});
  const older = h("button", { type: "button", class: "quiet", hidden: true }, "Older messages");
  let cards = new Map();
  let messages = null; // null while they are read
  let waiting = []; // versions that came meanwhile
  let reading = 0;
  let oldest = null;

  const apply = (version) => {
    const change = messages.apply(version);
    if (change === null) {
      return;
    }
    const card = cards.get(version.entity) ?? new Card(change.message);
    if (change.isNew) {
      cards.set(version.entity, card);
      list.prepend(card.element);
      fill(nothing);
    } else {
      card.update(change.message);
      card.add(change.version);
    }
  };
  const append = (page) => {
    for (const message of page.messages) {
      const card = new Card(message);
      cards.set(message.message, card);
      list.append(card.element);
      oldest = message.history_serial;
    }
    older.hidden = !page.has_more;
  };
  const read = async () => {
    reading += 1;
    const turn = reading;
    messages = null;
    waiting = [];
    try {
      const page = await get("messages", { stream });
      if (turn !== reading) {
        return;
      }
      messages = new Messages(page.messages);
      cards = new Map();
      list.replaceChildren();
      append(page);
      fill(nothing, page.messages.length ? null : empty("Nothing is kept of this channel."));
      waiting.forEach(apply);
    } catch (error) {
      fill(nothing, h("p", { class: "problem" }, error.message));
    }
  };
  older.addEventListener("click", async () => {
    try {
      const page = await get("messages", { stream, before: oldest });
      page.messages.forEach((message) => messages.bySerial.set(message.message, message));
      append(page);
    } catch (error) {
      notice(error.message, "bad");
    }
  });
  fill(
    root,
    h("p", {}, h("a", { href: link("channels") }, "← All channels")),
    h("h1", {}, channel),
    h("p", { class: "facts-line" }, `${stream} · `, h("a", { href: link("log", { stream }) }, "its entries in the log")),
    nothing,
    list,
    older,
  );
  const off = [
    // Once it is watched nothing is missed: what is committed from here on comes by the feed.
    feed.on("watching", (message) => message.stream === stream && read()),
    feed.on("watched", (message) => {
      if (message.stream === stream) {
        message.versions.forEach((version) => (messages === null ? waiting.push(version) : apply(version)));
      }
    }),
  ];
  feed.wish("watch", () => ({ type: "watch", stream }));
  return () => {
    off.forEach((end) => end());
    feed.unwish("watch", { type: "watch", stream: "" });
  };
}

export function channelsView(root, context) {
  const { feed, parameters, link } = context;
  const stream = parameters.get("stream");
  if (stream) {
    return channelView(root, stream, context);
  }
  const prefix = parameters.get("prefix") ?? "";
  const input = h("input", { id: "prefix", name: "prefix", value: prefix, autocomplete: "off", spellcheck: "false" });
  const form = h(
    "form",
    { class: "filters" },
    h("div", {}, h("label", { for: "prefix" }, "Name begins with"), input),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Find")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = input.value.trim();
    location.hash = link("channels", wanted ? { prefix: wanted } : {});
  });
  const body = h("div", {});
  fill(root, h("h1", {}, "Channels"), form, body);
  const columns = [
    {
      name: "Channel",
      wide: true,
      cell: (row) => h("a", { href: link("channels", { stream: row.stream }), data: { focus: row.stream } }, row.channel),
    },
    { name: "App", cell: (row) => row.app },
    { name: "Streaming", cell: (row) => (row.open ? chip(`${count(row.open)} open`, "live") : h("span", { class: "muted" }, "–")) },
    { name: "Subscribers", numeric: true, cell: (row) => count(row.subscribers) },
    { name: "Messages", numeric: true, cell: (row) => count(row.messages) },
    { name: "Newest", cell: (row) => h("time", { title: time(row.newest_at) }, ago(row.newest_at)) },
  ];
  return kept(feed, "channels", body, async () => {
    const { channels } = await get("channels", { prefix });
    return channels.length
      ? table("Channels", columns, channels)
      : empty(prefix ? "No channel has such a name." : "Nothing was published yet.");
  });
}
