// A client of sync for one flat list, as small as it can be: docs/protocol/sync.md says the rest.
// Drafts are kept in localStorage, so that a closed page loses none; events in memory.

const HEARTBEAT_MS = 10_000;
const RETRY_MS = 1000;
const TARGET = "tasks";

export class SyncList {
  constructor({ url, clientId, token, partition, onChange, onRefused }) {
    Object.assign(this, { url, clientId, token, partition, onChange, onRefused });
    this.key = `tidelog-drafts-${clientId}`;
    this.drafts = JSON.parse(localStorage.getItem(this.key) ?? "[]");
    this.committed = new Map(); // by position
    this.cursor = 0;
    this.incarnation = undefined;
    this.state = "offline";
    this.isOffline = true;
  }

  // What the application asks for.

  push(value) {
    this.submit({ type: "treePush", payload: { target: TARGET, value, options: { position: "last" } } });
  }

  update(id, value) {
    this.submit({ type: "treeUpdate", payload: { target: TARGET, value, options: { id } } });
  }

  remove(id) {
    this.submit({ type: "treeDelete", payload: { target: TARGET, options: { id } } });
  }

  // A draft has its id for ever, so submitting it again commits nothing twice.
  submit(event) {
    this.drafts.push({ id: crypto.randomUUID(), partitions: [this.partition], event });
    this.keep();
    this.sendDrafts();
    this.onChange();
  }

  // All that is committed, in the order of the log, and one's own drafts on top.
  view() {
    const items = new Map();
    const positions = [...this.committed.keys()].sort((a, b) => a - b);
    for (const event of [...positions.map((at) => this.committed.get(at)), ...this.drafts.map((draft) => draft.event)]) {
      const { value, options } = event.payload;
      if (event.type === "treePush") {
        items.set(value.id, value);
      } else if (event.type === "treeUpdate" && items.has(options.id)) {
        items.set(options.id, { ...items.get(options.id), ...value });
      } else if (event.type === "treeDelete") {
        items.delete(options.id);
      }
    }
    return [...items.values()];
  }

  // Its own events do not move the cursor: others may be between them that are not here yet.
  get last() {
    return Math.max(this.cursor, ...this.committed.keys());
  }

  // The connection.

  start() {
    this.isOffline = false;
    this.open();
  }

  stop() {
    this.isOffline = true;
    clearTimeout(this.retry);
    this.socket?.close();
    this.become("offline");
  }

  async open() {
    this.become("connecting");
    let token;
    try {
      token = await this.token(this.clientId);
    } catch {
      return this.again();
    }
    if (this.isOffline) {
      return undefined;
    }
    const socket = (this.socket = new WebSocket(this.url));
    this.inFlight = false;
    socket.onopen = () => this.send("connect", { token, client_id: this.clientId, ...(this.incarnation ? { incarnation: this.incarnation } : {}) });
    socket.onmessage = (message) => this.receive(JSON.parse(message.data));
    socket.onclose = () => {
      clearInterval(this.heartbeat);
      if (socket === this.socket) {
        this.again();
      }
    };
    return undefined;
  }

  again() {
    if (!this.isOffline) {
      this.become("offline");
      this.retry = setTimeout(() => this.open(), RETRY_MS);
    }
  }

  send(type, payload) {
    this.socket.send(JSON.stringify({ type, msg_id: crypto.randomUUID(), timestamp: Date.now(), payload, protocol_version: "1.0" }));
  }

  receive({ type, payload }) {
    if (type === "connected") {
      if (this.incarnation && this.incarnation !== payload.incarnation) {
        this.forgetAfter(payload.began); // the log was restored: what came after is not in it
      }
      this.incarnation = payload.incarnation;
      this.heartbeat = setInterval(() => this.send("heartbeat", {}), HEARTBEAT_MS);
      this.fetch();
    } else if (type === "sync_response") {
      payload.events.forEach((event) => this.take(event));
      this.cursor = payload.next_since_committed_id;
      if (payload.has_more) {
        this.fetch();
      } else {
        this.become("online");
        this.sendDrafts();
      }
    } else if (type === "event_broadcast") {
      this.take(payload);
      if (this.state === "online") {
        this.cursor = Math.max(this.cursor, payload.committed_id);
      }
    } else if (type === "submit_events_result") {
      this.inFlight = false;
      payload.results.forEach((result) => this.settle(result));
      this.keep();
      this.sendDrafts();
    } else if (type === "error") {
      this.inFlight = false;
      this.onRefused(payload.message ?? payload.code);
    }
    this.onChange();
  }

  fetch() {
    this.send("sync", { partitions: [this.partition], subscription_partitions: [this.partition], since_committed_id: this.cursor });
  }

  take(event) {
    this.committed.set(event.committed_id, event.event);
  }

  settle(result) {
    const draft = this.drafts.find((each) => each.id === result.id);
    this.drafts = this.drafts.filter((each) => each !== draft);
    if (draft && result.status === "committed") {
      this.committed.set(result.committed_id, draft.event);
    } else if (draft) {
      this.onRefused(result.errors?.map((error) => error.message).join(", ") ?? result.reason);
    }
  }

  sendDrafts() {
    if (this.state === "online" && !this.inFlight && this.drafts.length) {
      this.inFlight = true;
      this.send("submit_events", { events: this.drafts.slice(0, 50) });
    }
  }

  forgetAfter(position) {
    this.committed.forEach((_, at) => at > position && this.committed.delete(at));
    this.cursor = Math.min(this.cursor, position);
  }

  keep() {
    localStorage.setItem(this.key, JSON.stringify(this.drafts));
  }

  become(state) {
    this.state = state;
    this.onChange();
  }
}
