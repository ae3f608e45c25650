/**
 * tidelog.js: the channels of a tidelog server in a browser or in Node, without dependencies.
 *
 *     import { Tidelog } from "/tidelog.js";
 *
 *     const tide = new Tidelog({ key: "app-key" });
 *     const chat = tide.subscribe("chat", { rewind: 20 });
 *     chat.on("message", (message) => (pane.textContent = message.text));
 *
 * A message that grows is one object with its whole text each time. A lost connection is opened
 * again and continues where it was: nothing is lost, doubled or reordered, or the application is
 * told by `reset`. It speaks V2 of docs/protocol/channels.md.
 */

const OPEN_TIMEOUT = 10_000;
const PING_AFTER = 25_000;
const PONG_TIMEOUT = 10_000;
const HEARTBEAT = 5_000;
/** Milliseconds between two rounds of listeners: more often, no screen shows it. */
const FRAME = 16;
/** Positions in one resume: a server reads frames of up to 64 KiB. */
const RESUME_CHANNELS = 100;
/** Publishes that wait to be confirmed. */
const MAX_PENDING = 100;
/** Milliseconds until a publish that the server did not want yet is sent again. */
const POSTPONED = 1_000;
/** Milliseconds that a publish waits for its message after the server is known to have it. */
const ECHO_TIMEOUT = 1_000;
/** Pages of history that wait to be read. */
const MAX_READS = 100;
/** Characters kept of one channel, beside the limit on its messages. */
const MAX_CHARACTERS = 32 * 1024 * 1024;
/** Frames of one rewind: a page of history and what was published meanwhile. */
const MAX_REWOUND = 20_000;
/** Messages of one channel whose beginning is asked for; others stay partial. */
const MAX_UNFINISHED = 100;
/** Appends to one of them until its beginning is there; with more it stays partial. */
const MAX_PARTS = 10_000;
/** Frames over this are refused by the server. */
const MAX_FRAME_BYTES = 64 * 1024;

/** Milliseconds for which a server holds appends to send them together. */
const ROLLUP_WINDOWS = [0, 20, 40, 100, 500];

const NONE = Object.freeze([]);

/** What went wrong and what to do; `code` is the server's, or one of this module's own. */
export class TidelogError extends Error {
  constructor(code, message, cause) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "TidelogError";
    this.code = code;
  }
}

/** One message after its latest known version. It never changes: a later version is another one. */
export class Message {
  constructor(channel, operation, data, partial) {
    this.channel = channel;
    this.serial = operation.serial;
    this.name = operation.name;
    this.data = data;
    this.extras = operation.extras;
    this.tags = operation.tags;
    this.action = operation.action;
    this.version = operation.version;
    this.timestamp = operation.timestamp;
    this.clientId = operation.clientId;
    this.historySerial = operation.historySerial;
    this.deliverySerial = operation.deliverySerial;
    this.partial = partial;
    Object.freeze(this);
  }

  /** All of its data as text. */
  get text() {
    return typeof this.data === "string" ? this.data : this.data == null ? "" : JSON.stringify(this.data);
  }

  /** The value that was published, where the data is the text of a JSON value. */
  json() {
    return typeof this.data === "string" ? JSON.parse(this.data) : this.data;
  }

  /** The headers of runs and streams: `extras.ai.transport`. */
  get transport() {
    return this.extras.ai?.transport ?? {};
  }

  /** `streaming`, `complete` or `cancelled`; undefined of a message that is no stream. */
  get status() {
    return this.transport.status;
  }

  get streaming() {
    return this.status === "streaming";
  }

  get deleted() {
    return this.action === "delete";
  }

  get runId() {
    return this.transport["run-id"];
  }
}

// Frames.

const object = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
const text = (value) => (typeof value === "string" ? value : undefined);

/** The data of a system event, which comes as an object or inside a string (channels 1.3). */
const fieldsOf = (frame) => object(typeof frame.data === "string" ? JSON.parse(frame.data) : frame.data);

/** A position that can be counted on from; not every event has one. */
const isSerial = (value) => value === undefined || Number.isSafeInteger(value);

const isVersion = (frame) => typeof frame.extras?.headers?.sockudo_action === "string";

/** What a frame, or an item of the history, says about a message (channels 3, channels 5.8). */
function readOperation(frame) {
  const { headers: all, ...extras } = object(frame.extras);
  const headers = object(all);
  const own = Object.entries(headers).filter(([name]) => !name.startsWith("sockudo_"));
  if (own.length) extras.headers = Object.fromEntries(own);
  const versioned = isVersion(frame);
  const action = versioned ? headers.sockudo_action.replace("message.", "") : "event";
  const { data } = frame;
  const operation = {
    action,
    serial: versioned ? headers.sockudo_message_serial : frame.message_id,
    name: frame.name ?? (versioned && action !== "create" ? undefined : frame.event),
    data,
    /** Characters of the data. */
    size: typeof data === "string" ? data.length : data === undefined ? 0 : JSON.stringify(data).length,
    extras: Object.freeze(extras),
    tags: frame.tags,
    clientId: frame.user_id ?? frame.version?.client_id,
    messageId: frame.message_id,
    streamId: frame.stream_id,
    deliverySerial: frame.serial,
    historySerial: versioned ? headers.sockudo_history_serial : frame.serial,
    version: headers.sockudo_version_serial,
    timestamp: headers.sockudo_version_timestamp_ms,
  };
  if (!text(operation.serial) || (versioned && !(operation.historySerial && operation.deliverySerial))) {
    throw new Error("a version without its serials");
  }
  const isText = typeof (operation.name ?? "") === "string" && (action !== "append" || typeof (data ?? "") === "string");
  if (!isText || !isSerial(operation.historySerial) || !isSerial(operation.deliverySerial)) {
    throw new Error("a name, a serial or an append of a wrong type");
  }
  return operation;
}

/**
 * The operations of a version's frame: several if appends were rolled up, each with its own serial and
 * what it added, so that what is known of them already does not count twice (channels 5.13).
 */
function readOperations(frame) {
  const last = readOperation(frame);
  const { rolled } = frame;
  if (rolled === undefined) return [last];
  const characters = [...(last.data ?? "")]; // code points, as the server counts them
  const isLength = (value) => Number.isSafeInteger(value) && value >= 0;
  const fits = Array.isArray(rolled) && last.action === "append" && rolled.length && rolled.length <= last.deliverySerial;
  if (!fits || !rolled.every(isLength) || rolled.reduce((sum, length) => sum + length) !== characters.length) {
    throw new Error("rolled up appends that do not add up");
  }
  let start = 0;
  return rolled.map((length, index) => {
    const data = characters.slice(start, (start += length)).join("");
    return { ...last, data, size: data.length, deliverySerial: last.deliverySerial - rolled.length + 1 + index };
  });
}

/** What a channel's subscriber knows: operations in, messages out. */
class View {
  constructor(channel, limit) {
    this.channel = channel;
    this.limit = limit;
    this.clear();
  }

  clear() {
    /** Stream, delivery serial and message id of the last operation; undefined if none is known. */
    this.position = undefined;
    this.kept = new Map();
    /** [history serial, serial] of what is kept, ascending. */
    this.order = [];
    this.characters = 0;
    /** Serial of a message that was let go because it alone is larger than a channel may be. */
    this.tooLarge = undefined;
    /** Messages up to this history serial were let go; changes to them are not shown. */
    this.floor = 0;
    /** Serials of messages that changed since the listeners were told. */
    this.news = new Set();
    /** Frames of a rewind that goes on; which of them are states is known at its end (channels 6.3). */
    this.rewound = undefined;
    /** History serials of messages whose beginning may be asked for. */
    this.unfinished = new Set();
  }

  message(serial) {
    const kept = this.kept.get(serial);
    return kept && (kept.message ??= new Message(this.channel, kept.latest, kept.data, kept.partial));
  }

  /** The subscription begins, at a position if the server can resume it. */
  attached(streamId, serial, rewinds) {
    if (streamId === undefined || serial === undefined) this.position = undefined;
    else if (!this.position) this.position = { stream_id: streamId, serial };
    else if (this.position.stream_id !== streamId) return "other stream";
    else if (this.position.serial < serial) return "gap";
    this.rewound = rewinds ? [] : undefined;
  }

  /** The server resumes this position under another id: the log was restored after it (channels 6.4). */
  continuesAs(streamId) {
    if (this.position && streamId) this.position = { ...this.position, stream_id: streamId };
  }

  /** An operation, live or replayed; returns what is wrong with its place, if anything. */
  receive(operation) {
    const { deliverySerial: serial, streamId, messageId } = operation;
    if (this.rewound) {
      if (this.rewound.push(operation) > MAX_REWOUND) throw new Error("a rewind without an end");
      return undefined;
    }
    if (this.position) {
      if (streamId !== this.position.stream_id) return "other stream";
      if (serial <= this.position.serial) return "known";
      if (serial > this.position.serial + 1) return "gap";
      this.position = { stream_id: streamId, serial, last_message_id: messageId };
    }
    this.fold(operation, false);
    return undefined;
  }

  /**
   * The rewind has ended: its first frames were states, the others live operations. A state may be
   * newer than operations that are still to come, which are known by the message's own serial.
   */
  finishRewind(states) {
    const frames = this.rewound ?? [];
    this.rewound = undefined;
    frames.forEach((operation, index) => {
      this.fold(operation, index < states);
      const { deliverySerial: serial, messageId } = operation;
      if (index >= states && this.position && serial > this.position.serial) {
        this.position = { ...this.position, serial, last_message_id: messageId };
      }
    });
    return frames;
  }

  fold(operation, isWhole) {
    const { serial: key, historySerial } = operation;
    const adds = operation.action === "append" && !isWhole;
    let kept = this.kept.get(key);
    if (!kept) {
      if (historySerial <= this.floor) return;
      const asks = adds && this.unfinished.size < MAX_UNFINISHED;
      kept = { data: undefined, size: 0, partial: adds, parts: asks ? [] : undefined };
      this.kept.set(key, kept);
      let place = this.order.length;
      while (place && this.order[place - 1][0] > historySerial) place--;
      this.order.splice(place, 0, [historySerial, key]);
      if (asks) this.unfinished.add(historySerial);
    } else if (operation.deliverySerial <= kept.latest.deliverySerial) {
      return;
    }
    if (!adds) this.unfinished.delete(historySerial);
    this.write(kept, operation, adds);
    this.news.add(key);
    this.letGo();
  }

  /** What an operation says becomes part of what is kept. */
  write(kept, operation, adds) {
    kept.latest = operation;
    kept.message = undefined;
    if (adds) {
      const added = operation.data ?? "";
      if (kept.parts?.push([operation.deliverySerial, added]) > MAX_PARTS) this.stayPartial(operation.historySerial);
      kept.data = (typeof kept.data === "string" ? kept.data : "") + added;
    } else {
      kept.partial = false;
      kept.parts = undefined;
      kept.data = operation.data;
    }
    this.characters -= kept.size;
    kept.size = adds ? kept.data.length : operation.size;
    this.characters += kept.size;
  }

  /** The beginning of a message is not waited for any more. */
  stayPartial(historySerial) {
    this.unfinished.delete(historySerial);
    for (const kept of this.kept.values()) if (kept.latest.historySerial === historySerial) kept.parts = undefined;
  }

  /** The whole of a message as the history has it; what was added since stays added. */
  fill(state) {
    const kept = this.kept.get(state.serial);
    if (!kept?.parts) return;
    const { latest, parts } = kept;
    this.write(kept, state, false);
    for (const [deliverySerial, data] of parts) {
      if (deliverySerial > state.deliverySerial) {
        this.write(kept, { ...latest, deliverySerial, data }, true);
      }
    }
    this.news.add(state.serial);
    this.letGo();
  }

  letGo() {
    while (this.order.length > this.limit || this.characters > MAX_CHARACTERS) {
      const [historySerial, key] = this.order.shift();
      if (!this.order.length) this.tooLarge = key;
      this.floor = historySerial;
      this.characters -= this.kept.get(key).size;
      this.kept.delete(key);
      this.news.delete(key);
      this.unfinished.delete(historySerial);
    }
  }
}

/** Calls what was registered; an error of a listener is the application's and is shown as its own. */
class Emitter {
  #listeners = new Map();

  /** Register a listener; returns a function that removes it. */
  on(event, listener) {
    if (typeof listener !== "function") throw new TypeError(`on("${event}", ...) needs a function`);
    const entry = [listener];
    const entries = this.#listeners.get(event) ?? new Set();
    this.#listeners.set(event, entries.add(entry));
    return () => void entries.delete(entry);
  }

  _has(event) {
    return !!this.#listeners.get(event)?.size;
  }

  _emit(event, ...values) {
    for (const [listener] of [...(this.#listeners.get(event) ?? [])]) {
      try {
        listener(...values);
      } catch (error) {
        setTimeout(() => {
          throw error;
        });
      }
    }
  }

  /** An error nobody listens for is not lost. */
  _fail(error) {
    if (this._has("error")) this._emit("error", error);
    else console.error(`tidelog: ${error.message}`);
  }
}

/** One channel, across all connections of its client. Made by `subscribe`. */
export class Channel extends Emitter {
  #client;
  #view;
  #timer;
  #told = -FRAME;
  #ready = {};

  constructor(client, name, { rewind, limit = 1000 } = {}) {
    super();
    this.name = name;
    /** `subscribing`, `live`, `interrupted` (comes back by itself), `failed` or `closed`. */
    this.state = "subscribing";
    /** The messages kept, in the order they were published; another array after every change. */
    this.messages = NONE;
    /** Resolves when the subscription stands and its rewind is complete. */
    this.ready = new Promise((resolve, reject) => (this.#ready = { resolve, reject }));
    this.ready.catch(() => {}); // it is told by the event `error` too
    this.#client = client;
    this.#view = new View(name, limit);
    this._ = {
      rewind,
      limit,
      uses: 0,
      view: this.#view,
      phase: "detached",
      people: new Map(),
      /** The same as an array, once it was asked for. */
      members: NONE,
      /** Whether the server found the position good that the subscribe goes on from. */
      resumed: false,
      /** Whether the application was shown a beginning, to which everything must connect. */
      begun: false,
      /** Serial after which something was missing last; missing again there means a reset. */
      recoveredAt: -1,
      /** Whether the next operation is the last event of a cache channel, from before the rest. */
      cached: false,
      /** That event, during a rewind, which has it too if it reaches back so far. */
      held: undefined,
      /** History serial of the message whose beginning is being read. */
      reading: undefined,
    };
  }

  /** Who is on a presence channel: `{ id, info }` each; another array after every change. */
  get members() {
    return (this._.members ??= Object.freeze([...this._.people].map(([id, info]) => Object.freeze({ id, info }))));
  }

  /** The message of a serial, if it is kept. */
  get(serial) {
    return this.messages.find((message) => message.serial === serial);
  }

  /**
   * Runs as far as the kept messages show them, oldest first: `{ id, status, clientId, errorCode,
   * messages }`, where the status is `running`, `suspended`, `complete`, `cancelled` or `error`.
   */
  get runs() {
    if (this._.runsOf !== this.messages) {
      this._.runsOf = this.messages;
      this._.runs = readRuns(this.messages);
    }
    return this._.runs;
  }

  /** Call a function after every change of messages, members or state; returns how to stop it. */
  onChange(listener) {
    return this.on("change", listener);
  }

  /** A page of the past: `{ messages, hasMore }`, oldest first, before or after a message. */
  async history({ limit = 50, before, after } = {}) {
    const at = (message) => (typeof message === "number" ? message : message.historySerial);
    const query = { limit, direction: after === undefined ? "newest_first" : "oldest_first" };
    if (before !== undefined) query.end_serial = at(before) - 1;
    if (after !== undefined) query.start_serial = at(after) + 1;
    if (query.end_serial < 1 || query.end_serial < query.start_serial) return { messages: NONE, hasMore: false };
    const page = await this.#client._.read(this, query);
    const messages = page.items.map(({ message }) => {
      const operation = readOperation(message);
      return new Message(this.name, operation, operation.data, false);
    });
    if (after === undefined) messages.reverse();
    return { messages: Object.freeze(messages), hasMore: page.has_more };
  }

  /**
   * Publish an event. `ai-input`, `ai-cancel` and, for agents, the other `ai-` events are durable:
   * the promise resolves when the server has it, however often the connection is lost meanwhile:
   * with the message, or with undefined if it was there already when it was sent again. A `client-`
   * event is sent once, now or not at all, and nothing confirms it.
   */
  publish(name, data, { extras, id } = {}) {
    return this.#client._.publish(this, name, data, extras, id);
  }

  /** Ask agents to stop runs: `{ runId }`, `{ own: true }`, `{ clientId }` or `{ all: true }`. */
  cancel(what) {
    const forms = ["runId", "own", "clientId", "all"].filter((form) => what?.[form]);
    if (forms.length !== 1) {
      return Promise.reject(new TypeError("cancel takes one of { runId }, { own: true }, { clientId }, { all: true }"));
    }
    const [form] = forms;
    const headers = { runId: "run-id", clientId: "run-client-id" };
    const transport = headers[form] && { [headers[form]]: what[form] };
    return this.publish("ai-cancel", { [form]: what[form] }, { extras: transport && { ai: { transport } } });
  }

  /** Change what others see of oneself on a presence channel. */
  updatePresence(info) {
    this.#client._.present(this, info);
  }

  /** End one use of the channel; with the last one the subscription ends. */
  unsubscribe() {
    this.#client._.leave(this);
  }

  // For the client.

  _state(state) {
    if (this.state === state) return;
    this.state = state;
    this._changed();
  }

  /** Listeners are told soon, once for everything that came meanwhile. */
  _changed() {
    const wait = this.#told + FRAME - performance.now();
    this.#timer ??= setTimeout(() => this._flush(), Math.max(0, wait));
  }

  _flushDue() {
    if (this.#timer !== undefined) this._flush();
  }

  _flush() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#told = performance.now();
    const view = this.#view;
    const news = [...view.news];
    view.news.clear();
    if (news.length || view.order.length !== this.messages.length) {
      this.messages = Object.freeze(view.order.map(([, key]) => view.message(key)));
    }
    for (const serial of news) {
      const message = view.message(serial);
      if (message) this._emit("message", message);
    }
    this._emit("change", this.messages);
    const { tooLarge } = view;
    view.tooLarge = undefined;
    if (tooLarge) this._fail(new TidelogError("overflow", `message ${tooLarge} is larger than a channel may be here and is not kept`));
  }

  _opened() {
    this._.begun = true;
    this._state("live");
    this._flush();
    this.#ready.resolve(this);
  }

  _reset(code, reason) {
    this.#view.clear();
    this._.people.clear();
    this.messages = this._.members = NONE;
    this.state = "subscribing";
    this._emit("reset", { code, reason });
    this._changed();
  }

  _people(change) {
    this._.members = undefined;
    if (change) this._emit("presence", change);
    this._changed();
  }

  _end(state, error) {
    this._.phase = "detached";
    this._state(state);
    this.#ready.reject(error);
    if (state === "failed") this._fail(error);
  }
}

function readRuns(messages) {
  const runs = new Map();
  /** Ids of runs whose start was seen: the first one says whose a run is (runs 5). */
  const starts = new Set();
  for (const message of messages) {
    const { runId: id, name = "", transport } = message;
    // what users say about a run changes nothing of it
    if (id === undefined || !name.startsWith("ai-") || name === "ai-cancel" || name === "ai-input") continue;
    const run = runs.get(id) ?? { id, status: "running", clientId: undefined, errorCode: undefined, messages: [] };
    if (name === "ai-run-start" && !starts.has(id)) run.clientId = transport["run-client-id"];
    if (name === "ai-run-start") starts.add(id);
    if (name === "ai-run-suspend") run.status = "suspended";
    if (name === "ai-run-resume") run.status = "running";
    if (name === "ai-run-end") run.status = transport["run-reason"] ?? "complete";
    if (name === "ai-output") run.messages.push(message);
    run.errorCode = transport["error-code"] ?? run.errorCode;
    runs.set(id, run);
  }
  return Object.freeze([...runs.values()].map((run) => Object.freeze(run)));
}

function checkOptions({ rewind, limit = 1 }) {
  const much = rewind?.seconds ?? rewind?.count ?? rewind;
  if (much !== undefined && !(much > 0 && (rewind.seconds || Number.isInteger(much)))) {
    throw new RangeError("rewind is a number of messages from 1 on, or { seconds }");
  }
  if (!(limit >= 1)) throw new RangeError("limit is a number of messages from 1 on");
}

const needsAuthorization = (channel) => /^(private|presence)-/.test(channel);

/** A client of one app: its connection, and the channels it follows over it. */
export class Tidelog extends Emitter {
  constructor(options) {
    super();
    this._ = new Core(this, options ?? {});
  }

  /** `idle`, `connecting`, `connected`, `waiting` (to try again), `disconnected`, `failed`, `closed`. */
  get state() {
    return this._.state;
  }

  /** Of the present connection. */
  get socketId() {
    return this._.socketId;
  }

  /**
   * Follow a channel: with `rewind` (a number of messages, or `{ seconds }`) from the past on, and
   * with at most `limit` messages kept. A channel that is followed already is used once more.
   */
  subscribe(name, options) {
    return this._.subscribe(name, options ?? {});
  }

  /** The channel of a name, if it is followed. */
  channel(name) {
    return this._.channels.get(name);
  }

  /** The messages of a channel that is followed, else none; the same array until one changes. */
  messages(name) {
    return this.channel(name)?.messages ?? NONE;
  }

  /**
   * Subscribe, and call a function with the messages now and after every change. Returns a function
   * that ends both: the whole of what a hook of React, Vue or Svelte needs.
   */
  follow(name, options, listener) {
    const channel = this.subscribe(name, options);
    const stop = channel.onChange(listener);
    listener(channel.messages);
    let once = () => {
      once = () => {};
      stop();
      channel.unsubscribe();
    };
    return () => once();
  }

  /** Connect now: the first subscribe does, and every lost connection by itself after a wait. */
  connect() {
    this._.connect();
  }

  /** Close the connection and keep the subscriptions; `connect` continues where they were. */
  disconnect() {
    this._.disconnect("disconnected");
  }

  /** End everything. */
  close() {
    this._.close();
  }
}

/** The protocol: subscriptions across connections, and the connection itself. */
class Core {
  constructor(client, options) {
    const { key, url, token, authorize, retry, appendRollupWindow = 0, WebSocket } = options;
    if (typeof key !== "string" || !key) throw new TypeError('new Tidelog needs the key of the app: { key: "app-key" }');
    if (!ROLLUP_WINDOWS.includes(appendRollupWindow)) throw new RangeError(`appendRollupWindow is one of ${ROLLUP_WINDOWS.join(", ")}`);
    this.client = client;
    this.key = key;
    this.rollupWindow = appendRollupWindow;
    this.url = url;
    this.token = token;
    this.authorize = typeof authorize === "string" ? (...asked) => askEndpoint(authorize, ...asked) : authorize;
    this.WebSocket = WebSocket;
    this.retry = { first: 500, most: 30_000, ...retry };
    this.state = "idle";
    this.socketId = undefined;
    this.channels = new Map();
    /** Durable publishes by message id, in the order they are to be sent. */
    this.pending = new Map();
    /** Pages of history to be read; the first is under way if `reading`. */
    this.reads = [];
    this.reading = false;
    /** Subscribes under way by channel: only the reply to the last one counts. */
    this.unanswered = new Map();
    /** Of each ping without its pong: the publish that was sent before it, if one was. */
    this.pings = [];
    /** Id of the publish under way; null while the next one is postponed. */
    this.sending = undefined;
    /** Counts connections: whatever belongs to a former one is too late. */
    this.turn = 0;
    this.attempt = 0;
    this.lastError = "";
    this.online = () => this.state === "waiting" && this.connect();
    globalThis.addEventListener?.("online", this.online);
  }

  // The connection.

  setState(state) {
    if (this.state === state) return;
    this.state = state;
    this.client._emit("state", state);
  }

  connect() {
    if (this.state === "connecting" || this.state === "connected") return;
    if (this.state === "closed") throw new TidelogError("closed", "this client was closed; make another one");
    // Not before: a page may be rendered on a server, where there is nothing to connect with.
    this.WebSocket ??= globalThis.WebSocket;
    if (!this.WebSocket) {
      throw new TypeError('there is no WebSocket here: in Node before 22, install "ws" and pass { WebSocket }');
    }
    this.address ??= `${serverUrl(this.url)}/app/${encodeURIComponent(this.key)}`;
    this.open();
  }

  async open() {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    const isOver = () => turn !== this.turn;
    this.setState("connecting");
    const query = new URLSearchParams({ protocol: "2", client: "tidelog-js", append_mode: "delta" });
    if (this.rollupWindow) query.set("append_rollup_window", this.rollupWindow);
    try {
      if (this.token !== undefined) query.set("token", await this.freshToken());
    } catch (error) {
      if (!isOver()) this.lost(0, error);
      return;
    }
    if (isOver()) return;
    let socket;
    try {
      socket = new this.WebSocket(`${this.address}?${query}`);
    } catch (error) {
      this.fail(new TidelogError("url", `cannot connect to ${this.address}: ${error.message}`, error));
      return;
    }
    this.socket = socket;
    this.established = false;
    this.heardAt = performance.now();
    this.pingedAt = undefined;
    this.lastError = "";
    this.pingAfter = OPEN_TIMEOUT;
    this.heartbeat = setInterval(() => this.watch(), HEARTBEAT);
    socket.onmessage = ({ data }) => {
      if (isOver()) return;
      this.heardAt = performance.now();
      this.pingedAt = undefined;
      try {
        this.receive(JSON.parse(data));
      } catch (error) {
        this.lost(0, new TidelogError("protocol", `the server sent what the protocol does not allow: ${error.message}`, error));
      }
    };
    socket.onclose = ({ code }) => isOver() || this.lost(code);
    socket.onerror = () => {}; // a close follows, and says more
  }

  async freshToken() {
    try {
      const token = typeof this.token === "function" ? await this.token() : this.token;
      if (typeof token !== "string" || !token) throw new TypeError("`token` must give the text of a token");
      return token;
    } catch (error) {
      throw new TidelogError("token", `no token: ${error?.message ?? error}`, error);
    }
  }

  /** A network that vanished says nothing; a server that is there returns a pong. */
  watch() {
    const now = performance.now();
    if (this.pingedAt !== undefined) {
      if (now - this.pingedAt > PONG_TIMEOUT) this.lost(0);
    } else if (now - this.heardAt > this.pingAfter) {
      if (!this.established) return this.lost(0);
      this.pingedAt = now;
      this.ping();
    }
    return undefined;
  }

  ping(id) {
    this.pings.push(id);
    this.send("sockudo:ping");
  }

  /** The connection is gone, or was given up: what comes next depends on the close code (channels 1.5). */
  lost(code, error) {
    const { established, lastError } = this;
    this.drop();
    if (error) this.client._fail(error);
    if (code === 4009 && established && typeof this.token === "function") code = 0; // there is a new one to be had
    if (code >= 4000 && code < 5000 && (code < 4100 || code >= 4300)) {
      const hint = code === 4009 && this.token !== undefined ? "; give `token` as a function that fetches a new one" : "";
      return this.fail(new TidelogError(code, `the server closed the connection for good: ${lastError || code}${hint}`));
    }
    if (!this.wasConnected && !this.attempt && !error) {
      const text = `cannot connect to ${this.address} (${lastError || code}); trying again. Is the server there, and may this page reach it?`;
      this.client._fail(new TidelogError("unreachable", text));
    }
    const hurried = code >= 4200 && code < 4300 && !this.hurried;
    this.hurried = hurried;
    const wait = Math.min(this.retry.most, this.retry.first * 2 ** Math.min(this.attempt, 30));
    if (!hurried) this.attempt++;
    this.setState("waiting");
    this.timer = setTimeout(() => this.open(), hurried ? 0 : wait * (0.8 + 0.4 * Math.random()));
    return undefined;
  }

  drop() {
    this.turn++;
    clearTimeout(this.timer);
    clearInterval(this.heartbeat);
    const { socket } = this;
    this.socket = this.socketId = undefined;
    this.unanswered.clear();
    this.pings = [];
    this.sending = undefined;
    clearTimeout(this.postponed);
    for (const [id, { has }] of [...this.pending]) if (has) this.settle(id);
    this.reading = false;
    this.reads = this.reads.filter(({ channel }) => this.channels.get(channel.name) === channel);
    for (const read of this.reads) read.sent = false;
    for (const channel of this.channels.values()) {
      const subscription = channel._;
      Object.assign(subscription, { phase: "detached", resumed: false, reading: undefined });
      if (subscription.view.rewound) {
        subscription.view.rewound = subscription.view.position = undefined; // it begins anew
      }
      if (subscription.begun) channel._state("interrupted");
    }
    try {
      socket?.close();
    } catch {
      // it never opened
    }
  }

  disconnect(state) {
    if (this.state === "closed") return;
    this.drop();
    this.attempt = 0;
    this.setState(state);
  }

  /** There will be no connection any more, unless `connect` is called. */
  fail(error) {
    this.setState("failed");
    this.giveUp("failed", error);
    this.client._fail(error);
  }

  giveUp(state, error) {
    for (const channel of [...this.channels.values()]) this.end(channel, state, error);
    for (const read of this.reads.splice(0)) read.reject(error);
    for (const id of [...this.pending.keys()]) this.settle(id, error);
  }

  close() {
    this.disconnect("closed");
    globalThis.removeEventListener?.("online", this.online);
    this.giveUp("closed", new TidelogError("closed", "the client was closed"));
  }

  send(event, data, more) {
    this.socket?.send(JSON.stringify({ event, data, ...more }));
  }

  // What the application does.

  subscribe(name, options) {
    if (this.state === "closed") throw new TidelogError("closed", "this client was closed; make another one");
    let channel = this.channels.get(name);
    if (channel) {
      for (const option of ["rewind", "limit"]) {
        const [given, used] = [options[option], channel._[option]];
        if (given !== undefined && JSON.stringify(given) !== JSON.stringify(used)) {
          throw new TidelogError("options", `${name} is followed already with ${option} ${JSON.stringify(used)}`);
        }
      }
    } else {
      if (needsAuthorization(name) && !this.authorize) {
        throw new TidelogError("authorize", `${name} needs a signature of your server: new Tidelog({ key, authorize })`);
      }
      checkOptions(options);
      if (this.state === "idle" || this.state === "failed") this.connect();
      channel = new Channel(this.client, name, options);
      this.channels.set(name, channel);
      if (this.socketId) this.ask(channel);
    }
    channel._.uses++;
    return channel;
  }

  leave(channel) {
    if (this.channels.get(channel.name) !== channel || --channel._.uses > 0) return;
    this.sayUnsubscribe(channel);
    this.end(channel, "closed", new TidelogError("closed", `${channel.name} was unsubscribed`));
  }

  /** A channel is followed no more. */
  end(channel, state, error) {
    this.channels.delete(channel.name);
    this.reads = this.reads.filter((read) => {
      if (read.channel === channel) read.reject(error);
      return read.channel !== channel || read.sent; // the reply that is under way must find its place
    });
    for (const [id, publish] of [...this.pending]) if (publish.channel === channel) this.settle(id, error);
    channel._end(state, error);
  }

  async publish(channel, name, data, extras, id) {
    if (this.channels.get(channel.name) !== channel) {
      throw new TidelogError("closed", `${channel.name} is not subscribed; the event was not sent`);
    }
    const isClientEvent = String(name).startsWith("client-");
    if (!isClientEvent && !String(name).startsWith("ai-")) {
      throw new TypeError(`clients publish events named client-... or ai-...; "${name}" is for your server to publish`);
    }
    const frame = { event: name, channel: channel.name, data, extras };
    if (!isClientEvent) frame.message_id = id ?? randomId();
    const encoded = JSON.stringify(frame);
    if (new TextEncoder().encode(encoded).length > MAX_FRAME_BYTES) {
      throw new TidelogError("size", `${name} is larger than the ${MAX_FRAME_BYTES} bytes a client may send; let your server publish it`);
    }
    if (isClientEvent) {
      if (!canSend(channel)) throw new TidelogError("offline", "there is no connection now; the event was not sent");
      this.socket.send(encoded);
      return undefined;
    }
    const { message_id: messageId } = frame;
    const waiting = this.pending.get(messageId);
    if (waiting?.encoded === encoded) return waiting.promise;
    if (waiting) throw new TidelogError("id", `another event waits to be confirmed under the id ${messageId}; give each its own`);
    if (this.pending.size >= MAX_PENDING) {
      throw new TidelogError("overflow", `${MAX_PENDING} events wait to be confirmed; publish more when some of them are`);
    }
    const publish = { channel, encoded };
    publish.promise = new Promise((resolve, reject) => Object.assign(publish, { resolve, reject }));
    this.pending.set(messageId, publish);
    this.sendNext();
    return publish.promise;
  }

  /**
   * Send the next durable publish. One at a time: so they stay in order when one must wait, and when
   * all are sent again under their ids because the connection was lost. A ping follows each: what a
   * socket sends is worked on in order, so its pong says that the server has it (runs 3).
   */
  sendNext() {
    if (this.sending !== undefined) return;
    for (const [id, publish] of this.pending) {
      if (publish.has || !canSend(publish.channel)) continue;
      this.sending = id;
      this.socket.send(publish.encoded);
      this.ping(id);
      return;
    }
  }

  /** The server has it. Its echo is a moment away, or was delivered long ago and does not come. */
  taken(id) {
    const publish = this.pending.get(id);
    if (!publish || this.sending !== id) return;
    publish.has = true;
    publish.timer = setTimeout(() => this.settle(id), ECHO_TIMEOUT);
    this.sendAfter(id);
  }

  /** The one under way is done with. */
  sendAfter(id) {
    if (this.sending !== id) return;
    this.sending = undefined;
    this.sendNext();
  }

  /** A durable publish is done: with its message, or with why not. */
  settle(id, error, message) {
    const publish = this.pending.get(id);
    if (!publish) return;
    clearTimeout(publish.timer);
    this.pending.delete(id);
    if (error) publish.reject(error);
    else publish.resolve(message);
    this.sendAfter(id);
  }

  /** Too many at the moment, or too much: the same one again after a while, and the others after it. */
  postpone() {
    this.sending = null;
    this.postponed = setTimeout(() => this.sendAfter(null), POSTPONED);
  }

  present(channel, info) {
    if (!canSend(channel)) throw new TidelogError("offline", "there is no connection now; the presence was not changed");
    this.send("sockudo:presence_update", { user_info: info }, { channel: channel.name });
  }

  read(channel, query) {
    return new Promise((resolve, reject) => {
      if (this.channels.get(channel.name) !== channel) {
        reject(new TidelogError("closed", `${channel.name} is not subscribed`));
      } else if (this.reads.length >= MAX_READS) {
        reject(new TidelogError("overflow", `${MAX_READS} pages of history wait to be read already`));
      } else {
        this.reads.push({ channel, query, resolve, reject });
        this.readNext();
      }
    });
  }

  /** One page at a time: replies name no request (channels 6.2). */
  readNext() {
    if (this.reading) return;
    const next = this.reads.find((read) => canSend(read.channel));
    if (!next) return;
    this.reads.splice(this.reads.indexOf(next), 1);
    this.reads.unshift(next);
    this.reading = next.sent = true;
    this.send("sockudo:channel_history", { channel: next.channel.name, ...next.query });
  }

  wasRead(error, page) {
    if (!this.reading) return;
    this.reading = false;
    const read = this.reads.shift();
    if (error) read.reject(error);
    else read.resolve(page);
    this.readNext();
  }

  // What the server says.

  receive(frame) {
    const channel = this.channels.get(frame.channel);
    if (isVersion(frame)) {
      if (channel) for (const operation of readOperations(frame)) this.operation(channel, operation);
      return;
    }
    switch (frame.event) {
      case "sockudo:connection_established":
        return this.opened(fieldsOf(frame));
      case "sockudo:error":
        return this.refused(fieldsOf(frame));
      case "sockudo:token_expired":
        return fieldsOf(frame).code === 40142 ? this.renew() : undefined;
      case "sockudo:resume_success":
        return this.resumed(fieldsOf(frame));
      case "sockudo:pong":
        return this.taken(this.pings.shift());
      case "sockudo:channel_history":
        return this.reading && isPageOf(this.reads[0], frame) ? this.wasRead(undefined, fieldsOf(frame)) : undefined;
      case "sockudo_internal:subscription_succeeded":
      case "sockudo:subscription_error":
        return this.count(frame.channel, -1) <= 0 && channel ? this.answered(channel, frame) : undefined;
      default:
        return channel && this.told(channel, frame);
    }
  }

  told(channel, frame) {
    const subscription = channel._;
    switch (frame.event) {
      case "sockudo:rewind_complete": {
        if (subscription.phase !== "rewinding") return undefined;
        for (const operation of subscription.view.finishRewind(fieldsOf(frame).historical_count)) {
          this.confirm(channel, operation);
        }
        this.live(channel);
        const { held, view } = subscription;
        if (held && !view.kept.has(held.serial)) this.pass(channel, held);
        subscription.held = undefined;
        return undefined;
      }
      case "sockudo_internal:member_added":
      case "sockudo_internal:presence_update":
      case "sockudo_internal:member_removed": {
        const { user_id: id, user_info: info } = fieldsOf(frame);
        const type = { member_added: "join", presence_update: "update", member_removed: "leave" }[frame.event.split(":")[1]];
        if (type === "leave") subscription.people.delete(id);
        else subscription.people.set(id, info);
        return channel._people({ type, id, info });
      }
      case "sockudo:resume_failed": {
        const { code, reason } = fieldsOf(frame);
        // while a resume is under way, resume_success says it again
        return subscription.phase === "live" ? this.startAnew(channel, code, reason) : undefined;
      }
      case "sockudo:cache_miss":
        subscription.cached = false;
        return undefined;
      case "sockudo:message.summary":
        return undefined;
      default:
        // a system event that this module does not know is none of the application's
        return /^sockudo(_internal)?:/.test(frame.event) ? undefined : this.operation(channel, readOperation(frame));
    }
  }

  opened({ socket_id: socketId, activity_timeout: seconds }) {
    if (!text(socketId) || !(seconds > 0)) throw new Error("a connection without its id or timeout");
    this.socketId = socketId;
    this.established = this.wasConnected = true;
    this.pingAfter = Math.min(PING_AFTER, seconds * 1000);
    this.setState("connected");
    const resumed = [];
    for (const channel of this.channels.values()) {
      if (channel._.view.position) {
        resumed.push(channel);
        continue;
      }
      if (channel._.begun) this.forget(channel, "continuity_unverifiable", "no_position");
      this.ask(channel);
    }
    for (let start = 0; start < resumed.length; start += RESUME_CHANNELS) {
      this.resume(resumed.slice(start, start + RESUME_CHANNELS), "resuming");
    }
    this.settled();
  }

  /** A connection over which everything is subscribed to makes the next wait short again. */
  settled() {
    if ([...this.channels.values()].every(({ _: { phase } }) => phase === "live")) this.attempt = 0;
  }

  async renew() {
    const { turn } = this;
    if (this.renewing === turn) return;
    this.renewing = turn;
    try {
      const token = await this.freshToken();
      if (turn === this.turn) this.send("sockudo:auth", { token });
    } catch (error) {
      this.client._fail(error);
    }
    if (this.renewing === turn) this.renewing = undefined;
  }

  /** Most errors do not say what they refer to; whatever could be meant counts as failed. */
  refused({ code, message, ...more }) {
    this.lastError = `${code}: ${message}`;
    const error = new TidelogError(code, message);
    const { message_id: id, reason, ai_code: aiCode } = more;
    if (this.pending.has(id)) {
      const comesAgain = reason === "rate_limited" || reason === "backpressure";
      return comesAgain ? this.postpone() : this.settle(id, Object.assign(error, { reason, aiCode }));
    }
    let known = false;
    if (code === 4301 || code === 4302) {
      for (const channel of [...this.channels.values()]) {
        if (/^(resuming|recovering)$/.test(channel._.phase)) {
          known = true;
          this.startAnew(channel, "continuity_unverifiable", "resume_refused");
        }
      }
    }
    if (this.reading && (code === 4300 || code === 4301 || code === 4009)) {
      known = true;
      this.wasRead(error);
    }
    const closes = code > 4000 && code < 4300;
    if (!known && !this.unanswered.size && !closes) this.client._fail(error); // else the next frame or the close says it
    return undefined;
  }

  count(name, more) {
    const count = (this.unanswered.get(name) ?? 0) + more;
    if (count > 0) this.unanswered.set(name, count);
    else this.unanswered.delete(name);
    return count;
  }

  // Subscribing.

  async ask(channel) {
    const { socketId } = this;
    const subscription = channel._;
    subscription.phase = "subscribing";
    if (!needsAuthorization(channel.name)) return this.saySubscribe(channel);
    const isOver = () => socketId !== this.socketId || this.channels.get(channel.name) !== channel;
    try {
      const signed = await this.authorize(channel.name, socketId);
      if (isOver()) return undefined;
      if (typeof signed?.auth !== "string") throw new TypeError("`authorize` must return { auth, channel_data }");
      return this.saySubscribe(channel, signed);
    } catch (cause) {
      if (isOver()) return undefined;
      const error = new TidelogError("authorize", `authorizing ${channel.name} failed: ${cause?.message ?? cause}`, cause);
      // an application that has let it in before is asked again over a new connection
      return subscription.begun ? this.lost(0, error) : this.end(channel, "failed", error);
    }
  }

  saySubscribe(channel, signed) {
    const { rewind, view } = channel._;
    this.count(channel.name, 1);
    this.send("sockudo:subscribe", {
      channel: channel.name,
      auth: signed?.auth,
      channel_data: signed?.channel_data,
      rewind: view.position ? undefined : rewind,
    });
  }

  sayUnsubscribe(channel) {
    if (!/^(detached|resuming)$/.test(channel._.phase)) this.send("sockudo:unsubscribe", { channel: channel.name });
    channel._.phase = "detached";
  }

  answered(channel, frame) {
    const subscription = channel._;
    if (frame.event === "sockudo:subscription_error") {
      const { error, status } = fieldsOf(frame);
      return this.end(channel, "failed", new TidelogError(status ?? 401, `${channel.name}: ${error}`));
    }
    if (subscription.phase !== "subscribing") return undefined; // it was given up meanwhile
    const { view } = subscription;
    const { presence } = fieldsOf(frame);
    if (!isSerial(frame.serial)) throw new Error("a serial of a wrong type");
    if (presence) {
      subscription.people = new Map(Object.entries(presence.hash));
      channel._people();
    }
    const fresh = !view.position;
    const rewinds = fresh && subscription.rewind !== undefined;
    if (subscription.resumed && frame.serial === view.position?.serial) view.continuesAs(frame.stream_id);
    subscription.resumed = false;
    subscription.cached = fresh && /^(private-|presence-|private-encrypted-)?cache-/.test(channel.name);
    subscription.held = undefined;
    const verdict = view.attached(frame.stream_id, frame.serial, rewinds);
    subscription.phase = rewinds ? "rewinding" : "live";
    this.judge(channel, verdict);
    if (subscription.phase === "live") this.live(channel);
    else if (subscription.phase === "rewinding") this.sendNext();
    return undefined;
  }

  live(channel) {
    channel._.phase = "live";
    channel._opened();
    this.settled();
    this.sendNext();
    this.readNext();
    this.finish(channel);
  }


  // Continuity.

  operation(channel, operation) {
    const subscription = channel._;
    const { view, phase } = subscription;
    if (phase === "detached" || phase === "subscribing") return; // of a subscription that was given up
    const { cached } = subscription;
    subscription.cached = false;
    if (operation.deliverySerial === undefined) return this.pass(channel, operation); // not kept by the server
    if (cached && phase === "rewinding") {
      subscription.held = operation;
      return;
    }
    if (phase === "resuming") view.continuesAs(operation.streamId); // sent only because the position is good
    const verdict = view.receive(operation);
    if (verdict === "known") {
      if (cached) this.pass(channel, operation);
      return;
    }
    this.judge(channel, verdict);
    if (verdict || view.rewound) return;
    this.confirm(channel, operation);
    if (channel._has("version")) {
      channel._emit("version", { action: operation.action, data: operation.data, message: view.message(operation.serial) });
    }
    channel._changed();
    this.finish(channel);
  }

  /** An event that nothing is kept of: told at once, in its place among the others. */
  pass(channel, operation) {
    channel._flushDue();
    channel._emit("message", new Message(channel.name, operation, operation.data, false));
  }

  confirm(channel, operation) {
    if (this.pending.has(operation.messageId)) {
      this.settle(operation.messageId, undefined, channel._.view.message(operation.serial));
    }
  }

  judge(channel, verdict) {
    const subscription = channel._;
    if (verdict === "other stream") {
      this.startAnew(channel, "stream_reset", "stream_id_mismatch");
    } else if (verdict === "gap" && subscription.phase === "live") {
      const { serial } = subscription.view.position;
      if (serial === subscription.recoveredAt) {
        this.startAnew(channel, "continuity_unverifiable", "gap_in_delivery");
      } else {
        subscription.recoveredAt = serial;
        this.resume([channel], "recovering");
      }
    }
  }

  resume(channels, phase) {
    const positions = Object.create(null); // a channel may be called __proto__
    for (const channel of channels) {
      channel._.phase = phase;
      positions[channel.name] = channel._.view.position;
    }
    this.send("sockudo:resume", { channel_positions: positions });
  }

  resumed({ recovered, failed }) {
    for (const entry of recovered) {
      const channel = this.channels.get(entry.channel);
      if (channel?._.phase === "resuming") {
        channel._.resumed = true;
        this.ask(channel);
      } else if (channel?._.phase === "recovering") {
        channel._.phase = "live";
        this.live(channel);
      }
    }
    for (const { channel: name, code, reason } of failed) {
      const channel = this.channels.get(name);
      if (/^(resuming|recovering)$/.test(channel?._.phase)) this.startAnew(channel, code, reason);
    }
  }

  startAnew(channel, code, reason) {
    this.sayUnsubscribe(channel);
    this.forget(channel, code, reason);
    this.ask(channel);
  }

  forget(channel, code, reason) {
    Object.assign(channel._, { begun: false, resumed: false, reading: undefined, recoveredAt: -1 });
    channel._reset(code, reason);
  }

  /** The beginning of a message that was appended to before it was known is read from history. */
  async finish(channel) {
    const subscription = channel._;
    const { view } = subscription;
    if (subscription.reading !== undefined || subscription.phase !== "live" || !view.unfinished.size) return;
    const [wanted] = view.unfinished;
    subscription.reading = wanted;
    let states = NONE;
    try {
      const { items } = await this.read(channel, { limit: 1, start_serial: wanted, end_serial: wanted });
      states = items.filter(({ message }) => isVersion(message)).map(({ message }) => readOperation(message));
    } catch {
      // it stays partial
    }
    if (subscription.reading !== wanted) return;
    subscription.reading = undefined;
    for (const state of states) view.fill(state);
    view.stayPartial(wanted);
    channel._changed();
    this.finish(channel);
  }
}

/** Whether a page is what was asked for, and not for a read that was given up. */
function isPageOf({ channel, query }, frame) {
  const { direction, bounds } = fieldsOf(frame);
  const asked = [channel.name, query.direction ?? "newest_first", query.start_serial, query.end_serial];
  const given = [frame.channel, direction, bounds?.start_serial ?? undefined, bounds?.end_serial ?? undefined];
  return asked.every((each, index) => each === given[index]);
}

/** Whether the server takes what a channel's subscriber sends. */
const canSend = ({ _: { phase } }) => phase === "rewinding" || phase === "live" || phase === "recovering";

/** Where sockets connect to: the server named, else the one this module or the page came from. */
function serverUrl(url) {
  const here = import.meta.url ?? "";
  const own = /^https?:.*\/tidelog\.js$/.test(here) ? new URL(".", here).href : globalThis.location?.origin;
  const given = url ?? own;
  if (!/^(https?|wss?):\/\/./.test(given ?? "")) {
    throw new TypeError('new Tidelog needs the address of the server: { url: "https://host" }');
  }
  return given.replace(/^http/, "ws").replace(/\/+$/, "");
}

/** Asks an application's endpoint as Pusher's libraries do, so that one written for them is enough. */
async function askEndpoint(endpoint, channel, socketId) {
  const body = new URLSearchParams({ socket_id: socketId, channel_name: channel });
  const response = await fetch(endpoint, { method: "POST", body });
  if (!response.ok) throw new Error(`${endpoint} returned ${response.status}`);
  return response.json();
}

/** Unguessable; `randomUUID` is missing on pages without TLS. */
const randomId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
