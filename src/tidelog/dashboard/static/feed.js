// The socket to the server: comes back by itself, says where it was, and so shows no gap.

import { get } from "./api.js";

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;
const SESSION_ENDED = 4401;

export class Feed {
  constructor(onState) {
    this.position = 0; // of the last entry it was told of
    this.samples = [];
    this.written = {}; // entries by surface since the page was opened
    this.onState = onState;
    this.listeners = new Map();
    this.wishes = new Map(); // what the server must be told again after a reconnect
    this.failures = 0;
    this.connect();
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(`${scheme}//${location.host}/dashboard/feed`);
    this.socket.addEventListener("open", () => {
      this.failures = 0;
      this.onState("live");
      for (const wish of this.wishes.values()) {
        this.send(wish());
      }
    });
    this.socket.addEventListener("message", (event) => this.take(JSON.parse(event.data)));
    this.socket.addEventListener("close", (event) => this.lost(event.code));
  }

  async lost(code) {
    this.onState(code === SESSION_ENDED ? "ended" : "waiting");
    if (code === SESSION_ENDED) {
      return;
    }
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.failures);
    this.failures += 1;
    await new Promise((resolve) => setTimeout(resolve, wait));
    if (this.failures > 1) {
      // A refused upgrade looks like a dead server; only a question tells that a login is needed.
      const isOut = await get("state").then(() => false, (error) => error.status === 401);
      if (isOut) {
        this.onState("ended");
        return;
      }
    }
    this.connect();
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify(message));
    }
  }

  // Say something now and after every reconnect; `make` is asked each time.
  wish(name, make) {
    this.wishes.set(name, make);
    this.send(make());
  }

  unwish(name, farewell) {
    this.wishes.delete(name);
    this.send(farewell);
  }

  on(type, listener) {
    const listeners = this.listeners.get(type) ?? new Set();
    this.listeners.set(type, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  take(message) {
    if (message.type === "hello") {
      this.samples = message.samples;
      this.position = message.position;
    } else if (message.type === "sample") {
      this.samples = [...this.samples.slice(-299), message.sample];
      this.position = Math.max(this.position, message.sample.head);
    } else if (message.type === "entries") {
      this.position = message.position;
      for (const [surface, number] of Object.entries(message.written)) {
        this.written[surface] = (this.written[surface] ?? 0) + number;
      }
    }
    for (const listener of [...(this.listeners.get(message.type) ?? []), ...(this.listeners.get("any") ?? [])]) {
      listener(message);
    }
  }
}
