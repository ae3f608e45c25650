// tidelog.js against a server that is played by the test: every frame in the order the test wants.
//   node --test unit.test.mjs

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { Tidelog, TidelogError } from "../../../clients/js/tidelog.js";

/** Sockets that were opened, oldest first. */
let sockets;
let clients;
let errors;

class FakeSocket {
  constructor(url) {
    this.url = new URL(url);
    this.sent = [];
    this.isClosed = false;
    sockets.push(this);
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close() {
    this.isClosed = true;
  }
  // The server's side.
  say(frame) {
    this.onmessage({ data: JSON.stringify({ message_id: `m${Math.random()}`, ...frame }) });
  }
  system(name, data, more) {
    this.say({ event: `sockudo:${name}`, data, ...more });
  }
  establish() {
    this.say({
      event: "sockudo:connection_established",
      data: JSON.stringify({ socket_id: `${sockets.length}.1`, activity_timeout: 120 }),
    });
  }
  succeed(channel, serial = 0, stream = "s1", data = {}) {
    this.say({
      event: "sockudo_internal:subscription_succeeded",
      channel,
      data: JSON.stringify(data),
      stream_id: stream,
      serial,
    });
  }
  version(action, serial, data, more = {}) {
    const { message = "A", history = 1, channel = "room", stream = "s1", extras = {}, ...rest } = more;
    this.say({
      event: action === "create" ? "answer" : `sockudo:message.${action}`,
      name: "answer",
      channel,
      data,
      stream_id: stream,
      serial,
      message_id: `${message}-${serial}`,
      extras: {
        ...extras,
        headers: {
          sockudo_action: `message.${action}`,
          sockudo_message_serial: message,
          sockudo_version_serial: `v${String(serial).padStart(5, "0")}`,
          sockudo_version_timestamp_ms: 1000 + serial,
          sockudo_history_serial: history,
        },
      },
      ...rest,
    });
  }
  asked(name) {
    return this.sent.filter(({ event }) => event === `sockudo:${name}`).map(({ data }) => data);
  }
}

const client = (options) => {
  const made = new Tidelog({ key: "k", url: "http://host/base/", WebSocket: FakeSocket, retry: { first: 1, most: 2 }, ...options });
  made.on("error", (error) => errors.push(error));
  clients.push(made);
  return made;
};
const pause = (ms = 25) => new Promise((resolve) => setTimeout(resolve, ms));
const until = async (condition) => {
  while (!condition()) await pause(2);
};
const texts = (channel) => channel.messages.map(({ text }) => text);

/** A client with one channel that is live at a serial. */
async function live(options, serial = 0) {
  const tide = client();
  const room = tide.subscribe("room", options);
  await until(() => sockets.length);
  sockets[0].establish();
  sockets[0].succeed("room", serial);
  return { tide, room, socket: sockets[0] };
}

/** The next socket after a cut, established. */
async function reconnected(socket, code = 1006) {
  const count = sockets.length;
  socket.onclose({ code });
  await until(() => sockets.length > count);
  sockets.at(-1).establish();
  return sockets.at(-1);
}

beforeEach(() => {
  sockets = [];
  clients = [];
  errors = [];
});
afterEach(() => clients.forEach((each) => each.close()));

test("a message is folded from its operations", async () => {
  const { room, socket } = await live();
  const seen = [];
  room.on("version", ({ action, data }) => seen.push([action, data]));
  const status = (value) => ({ extras: { ai: { transport: { status: value } }, other: 1 } });
  socket.version("create", 1, "a", status("streaming"));
  socket.version("append", 2, "b", status("streaming"));
  await pause();
  assert.deepEqual(texts(room), ["ab"]);
  assert.equal(room.messages[0].streaming, true);
  const earlier = room.messages;
  socket.version("append", 3, "", status("complete"));
  await pause();
  assert.notEqual(room.messages, earlier);
  assert.equal(earlier[0].status, "streaming");
  const [message] = room.messages;
  assert.deepEqual(
    [message.text, message.status, message.version, message.name, message.deliverySerial, message.extras],
    ["ab", "complete", "v00003", "answer", 3, { ai: { transport: { status: "complete" } }, other: 1 }],
  );
  socket.version("update", 4, { n: 1 });
  socket.version("delete", 5, undefined);
  socket.version("append", 6, "anew");
  await pause();
  assert.deepEqual(texts(room), ["anew"]);
  assert.equal(room.get("A").action, "append");
  assert.deepEqual(seen.map(([action]) => action), ["create", "append", "append", "update", "delete", "append"]);
  assert.throws(() => (room.messages[0].data = "x"), TypeError);
  assert.throws(() => room.messages.push(1), TypeError);
});

test("what came already is not added twice, and what is missing is asked for", async () => {
  const { room, socket } = await live();
  socket.version("create", 1, "a");
  socket.version("append", 2, "b");
  socket.version("append", 2, "b");
  socket.version("create", 1, "a");
  socket.version("append", 4, "d"); // 3 is missing
  socket.version("append", 5, "e"); // and this comes again with the resume
  assert.deepEqual(socket.asked("resume"), [
    { channel_positions: { room: { stream_id: "s1", serial: 2, last_message_id: "A-2" } } },
  ]);
  for (const [serial, data] of [[3, "c"], [4, "d"], [5, "e"]]) socket.version("append", serial, data);
  socket.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  socket.version("append", 6, "f");
  await pause();
  assert.deepEqual(texts(room), ["abcdef"]);
  assert.equal(socket.asked("resume").length, 1);
});

test("what stays missing is a reset that the application is told of", async () => {
  const { room, socket } = await live({ rewind: 5 });
  socket.system("rewind_complete", { historical_count: 0 }, { channel: "room" });
  const resets = [];
  room.on("reset", (reset) => resets.push(reset));
  socket.version("create", 1, "a");
  socket.version("append", 3, "c");
  socket.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  socket.version("append", 4, "d");
  assert.deepEqual(resets, [{ code: "continuity_unverifiable", reason: "gap_in_delivery" }]);
  assert.deepEqual(room.messages, []);
  assert.equal(room.state, "subscribing");
  assert.deepEqual(socket.asked("unsubscribe"), [{ channel: "room" }]);
  assert.deepEqual(socket.asked("subscribe").at(-1), { channel: "room", rewind: 5 });
  socket.version("append", 5, "late, of the subscription that was given up");
  socket.succeed("room", 5);
  socket.version("append", 5, "abcde"); // a state: all of it
  socket.system("rewind_complete", { historical_count: 1 }, { channel: "room" });
  assert.deepEqual(texts(room), ["abcde"]);
});

test("states of a rewind and what goes live meanwhile come together once", async () => {
  const { room, socket } = await live({ rewind: 2 }, 4);
  assert.deepEqual(socket.asked("subscribe"), [{ channel: "room", rewind: 2 }]);
  socket.version("append", 4, "whole", { message: "A", history: 1 });
  socket.version("create", 3, "other", { message: "B", history: 2 });
  socket.version("append", 5, "+", { message: "A", history: 1 });
  assert.equal(room.state, "subscribing");
  socket.system("rewind_complete", { historical_count: 2, live_count: 1 }, { channel: "room" });
  assert.equal(await room.ready, room);
  assert.deepEqual(texts(room), ["whole+", "other"]);
  assert.deepEqual(room.messages.map(({ partial }) => partial), [false, false]);
  socket.version("append", 5, "+", { message: "A", history: 1 });
  socket.version("append", 6, "!", { message: "B", history: 2 });
  await pause();
  assert.deepEqual(texts(room), ["whole+", "other!"]);
});

test("a state that is newer than live operations still to come", async () => {
  const { room, socket } = await live({ rewind: 2 }, 4);
  socket.version("append", 6, "abc", { message: "A", history: 1 });
  socket.system("rewind_complete", { historical_count: 1, live_count: 0 }, { channel: "room" });
  socket.version("create", 5, "of another", { message: "B", history: 2 });
  socket.version("append", 6, "c", { message: "A", history: 1 });
  socket.version("append", 7, "d", { message: "A", history: 1 });
  await pause();
  assert.deepEqual(texts(room), ["abcd", "of another"]);
  assert.equal(socket.asked("resume").length, 0);
});

test("a lost connection is resumed before it is subscribed to again", async () => {
  const { tide, room, socket } = await live();
  const states = [];
  tide.on("state", (state) => states.push(state));
  socket.version("create", 1, "a");
  const next = await reconnected(socket);
  assert.deepEqual(next.sent.map(({ event }) => event), ["sockudo:resume"]);
  assert.equal(room.state, "interrupted");
  next.version("append", 2, "b");
  next.version("append", 3, "c");
  next.system("resume_success", JSON.stringify({ recovered: [{ channel: "room" }], failed: [] }));
  assert.deepEqual(next.asked("subscribe"), [{ channel: "room" }]);
  next.succeed("room", 3);
  next.version("append", 4, "d");
  await pause();
  assert.deepEqual(texts(room), ["abcd"]);
  assert.equal(room.state, "live");
  assert.deepEqual(states, ["waiting", "connecting", "connected"]);
  socket.version("append", 5, "of the former connection");
  await pause();
  assert.deepEqual(texts(room), ["abcd"]);
});

test("what was published between resume and subscribe is fetched", async () => {
  const { room, socket } = await live();
  socket.version("create", 1, "a");
  const next = await reconnected(socket);
  next.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  next.succeed("room", 3); // further than what is known
  assert.deepEqual(next.asked("resume").at(-1).channel_positions.room.serial, 1);
  next.version("append", 2, "b");
  next.version("append", 3, "c");
  next.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  await pause();
  assert.deepEqual(texts(room), ["abc"]);
});

test("a restored log resumes under another stream id", async () => {
  const { room, socket } = await live();
  const resets = [];
  room.on("reset", (reset) => resets.push(reset));
  socket.version("create", 1, "a");
  const next = await reconnected(socket);
  next.version("append", 2, "b", { stream: "s2" });
  next.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  next.succeed("room", 2, "s2");
  next.version("append", 3, "c", { stream: "s2" });
  await pause();
  assert.deepEqual(texts(room), ["abc"]);
  next.version("append", 4, "x", { stream: "s3" });
  assert.deepEqual(resets, [{ code: "stream_reset", reason: "stream_id_mismatch" }]);
});

test("a resume that fails begins anew and says why", async () => {
  const { room, socket } = await live({ rewind: 1 });
  socket.system("rewind_complete", { historical_count: 0 }, { channel: "room" });
  const resets = [];
  room.on("reset", (reset) => resets.push(reset));
  socket.version("create", 1, "a");
  const next = await reconnected(socket);
  const failed = { channel: "room", code: "position_expired", reason: "recovery_window_exceeded" };
  next.system("resume_failed", JSON.stringify(failed), { channel: "room" });
  next.system("resume_success", JSON.stringify({ recovered: [], failed: [failed] }));
  assert.deepEqual(resets, [{ code: failed.code, reason: failed.reason }]);
  assert.deepEqual(next.asked("subscribe"), [{ channel: "room", rewind: 1 }]);
});

test("a connection lost during the rewind rewinds again", async () => {
  const { room, socket } = await live({ rewind: 3 }, 7);
  socket.version("append", 7, "half");
  const next = await reconnected(socket);
  assert.deepEqual(next.sent.map(({ event }) => event), ["sockudo:subscribe"]);
  next.succeed("room", 8);
  next.version("append", 8, "whole");
  next.system("rewind_complete", { historical_count: 1 }, { channel: "room" });
  await room.ready;
  assert.deepEqual(texts(room), ["whole"]);
});

test("the beginning of a message from before the subscription is read from history", async () => {
  const { room, socket } = await live({}, 5);
  socket.version("append", 6, "c", { history: 1 });
  await pause();
  assert.equal(room.messages[0].partial, true);
  assert.deepEqual(socket.asked("channel_history"), [{ channel: "room", limit: 1, start_serial: 1, end_serial: 1 }]);
  socket.version("append", 7, "d", { history: 1 });
  const headers = { sockudo_action: "message.append", sockudo_message_serial: "A", sockudo_history_serial: 1 };
  socket.system("channel_history", {
    items: [{ message: { event: "sockudo:message.append", name: "answer", data: "abc", serial: 6, extras: { headers } } }],
    direction: "newest_first",
    bounds: { start_serial: 1, end_serial: 1, start_time_ms: null, end_time_ms: null },
    has_more: false,
  }, { channel: "room" });
  await pause();
  assert.deepEqual([texts(room), room.messages[0].partial], [["abcd"], false]);
  assert.equal(room.messages[0].deliverySerial, 7);
});

test("appends that come together are no gap and are added once", async () => {
  const tide = client({ appendRollupWindow: 40 });
  const room = tide.subscribe("room");
  await until(() => sockets.length);
  const [socket] = sockets;
  assert.equal(socket.url.searchParams.get("append_rollup_window"), "40");
  socket.establish();
  socket.succeed("room", 0);
  const pieces = [];
  room.on("version", ({ data }) => pieces.push(data));
  socket.version("create", 1, "a");
  socket.version("append", 3, "b\u{1F30A}c", { rolled: [1, 2] });
  socket.version("append", 5, "\u{1F30A}cde", { rolled: [2, 1, 1] }); // its first was known
  socket.version("append", 5, "\u{1F30A}cde", { rolled: [2, 1, 1] });
  assert.deepEqual(socket.asked("resume"), []);
  socket.version("append", 8, "gh", { rolled: [1, 1] });
  assert.equal(socket.asked("resume")[0].channel_positions.room.serial, 5);
  for (const [serial, text] of [[6, "f"], [7, "g"], [8, "h"]]) socket.version("append", serial, text);
  socket.system("resume_success", JSON.stringify({ recovered: [{ channel: "room" }], failed: [] }));
  await pause();
  assert.deepEqual(texts(room), ["ab\u{1F30A}cdefgh"]);
  assert.deepEqual(pieces, ["a", "b", "\u{1F30A}c", "d", "e", "f", "g", "h"]);
  assert.equal(room.messages[0].deliverySerial, 8);
  assert.throws(() => client({ appendRollupWindow: 30 }), RangeError);
});

test("appends that come together and the beginning that is read meanwhile", async () => {
  const { room, socket } = await live({}, 5);
  socket.version("append", 7, "cd", { history: 1, rolled: [1, 1] });
  await pause();
  socket.version("append", 10, "efg", { history: 1, rolled: [1, 1, 1] });
  const headers = { sockudo_action: "message.append", sockudo_message_serial: "A", sockudo_history_serial: 1 };
  socket.system("channel_history", {
    items: [{ message: { event: "sockudo:message.append", name: "answer", data: "abcde", serial: 8, extras: { headers } } }],
    direction: "newest_first",
    bounds: { start_serial: 1, end_serial: 1, start_time_ms: null, end_time_ms: null },
    has_more: false,
  }, { channel: "room" });
  await pause();
  assert.deepEqual([texts(room), room.messages[0].partial], [["abcdefg"], false]);
});

test("memory is bounded by the limit, and what was let go is not shown again", async () => {
  const { room, socket } = await live({ limit: 3 });
  for (let n = 1; n <= 6; n++) socket.version("create", n, `${n}`, { message: `M${n}`, history: n });
  socket.version("append", 7, "late", { message: "M1", history: 1 });
  await pause();
  assert.deepEqual(texts(room), ["4", "5", "6"]);
  assert.equal(socket.asked("channel_history").length, 0);
});

test("memory is bounded by characters", async () => {
  const { room, socket } = await live();
  const large = "x".repeat(9 * 1024 * 1024);
  for (let n = 1; n <= 5; n++) socket.version("create", n, large, { message: `M${n}`, history: n });
  await pause();
  assert.deepEqual(room.messages.map(({ serial }) => serial), ["M3", "M4", "M5"]);
});

test("listeners are told states, once for what came together, and again after a pause", async () => {
  const { room, socket } = await live();
  await pause();
  const told = [];
  let changes = 0;
  room.on("message", ({ text }) => told.push(text));
  const stop = room.onChange(() => changes++);
  socket.version("create", 1, "a");
  for (let serial = 2; serial <= 50; serial++) socket.version("append", serial, "b");
  await pause();
  assert.deepEqual([told, changes], [[`a${"b".repeat(49)}`], 1]);
  stop();
  socket.version("append", 51, "c");
  await pause();
  assert.equal(changes, 1);
});

test("a listener that throws disturbs nobody", async () => {
  const { room, socket } = await live();
  const thrown = [];
  const keep = process.listeners("uncaughtException");
  process.removeAllListeners("uncaughtException");
  process.once("uncaughtException", (error) => thrown.push(error.message));
  const told = [];
  room.on("message", () => {
    throw new Error("of the application");
  });
  room.on("message", ({ text }) => told.push(text));
  socket.version("create", 1, "a");
  await until(() => thrown.length);
  keep.forEach((listener) => process.on("uncaughtException", listener));
  assert.deepEqual([told, thrown], [["a"], ["of the application"]]);
});

test("events that nobody keeps are told at once and not kept", async () => {
  const { room, socket } = await live();
  const told = [];
  room.on("message", ({ text, action }) => told.push([text, action]));
  socket.version("create", 1, "a");
  socket.say({ event: "typing", channel: "room", data: "ana", message_id: "e1" });
  assert.deepEqual(told, [["a", "create"], ["ana", "event"]]);
  assert.deepEqual(texts(room), ["a"]);
  socket.say({ event: "sockudo:of_a_later_version", channel: "room", data: {} });
  assert.equal(told.length, 2);
});

test("the last event of a cache channel is told to who comes, and not again after a resume", async () => {
  const tide = client();
  const room = tide.subscribe("cache-room");
  await until(() => sockets.length);
  const [socket] = sockets;
  const told = [];
  room.on("message", ({ text }) => told.push(text));
  socket.establish();
  socket.succeed("cache-room", 4);
  socket.version("create", 4, "last", { channel: "cache-room" });
  assert.deepEqual(told, ["last"]);
  socket.version("create", 5, "new", { channel: "cache-room", message: "B", history: 2 });
  const next = await reconnected(socket);
  next.system("resume_success", { recovered: [{ channel: "cache-room" }], failed: [] });
  next.succeed("cache-room", 5);
  next.version("create", 5, "new", { channel: "cache-room", message: "B", history: 2 });
  await pause();
  assert.deepEqual(told, ["last", "new"]);
});

test("the last event of a cache channel is not taken for a state of a rewind", async () => {
  const tide = client();
  const told = [];
  const begin = async (name, states) => {
    const room = tide.subscribe(name, { rewind: 2 });
    room.on("message", ({ text }) => told.push(text));
    await until(() => sockets.length);
    if (!tide.socketId) sockets[0].establish();
    sockets[0].succeed(name, 4);
    sockets[0].version("create", 3, "a", { channel: name }); // as it was published
    states();
    sockets[0].system("rewind_complete", { historical_count: 1 }, { channel: name });
    return room;
  };
  const first = await begin("cache-a", () => sockets[0].version("append", 4, "ab", { channel: "cache-a" }));
  assert.deepEqual([texts(first), told], [["ab"], ["ab"]]);
  const other = { channel: "cache-b", message: "B", history: 2 };
  const second = await begin("cache-b", () => sockets[0].version("append", 4, "of a client", other));
  assert.deepEqual([texts(second), told], [["of a client"], ["ab", "of a client", "a"]]);
  const missed = tide.subscribe("cache-c", { rewind: 2 });
  sockets[0].succeed("cache-c", 4);
  sockets[0].system("cache_miss", "{}", { channel: "cache-c" });
  sockets[0].version("append", 4, "state", { channel: "cache-c" });
  sockets[0].system("rewind_complete", { historical_count: 1 }, { channel: "cache-c" });
  assert.deepEqual(texts(missed), ["state"]);
});

test("an answer to a subscribe that was given up is not taken for the next one's", async () => {
  const { tide, room, socket } = await live();
  room.unsubscribe();
  assert.equal(room.state, "closed");
  const second = tide.subscribe("room", { rewind: 1 });
  second.unsubscribe();
  const third = tide.subscribe("room");
  socket.succeed("room", 3); // of the second
  assert.equal(third.state, "subscribing");
  socket.version("append", 4, "x");
  socket.succeed("room", 4);
  assert.equal(third.state, "live");
  await assert.rejects(second.ready, { code: "closed" });
});

test("a channel used twice is one subscription until both are done", async () => {
  const { tide, room, socket } = await live({ rewind: 1 });
  assert.equal(tide.subscribe("room"), room);
  assert.throws(() => tide.subscribe("room", { rewind: 2 }), { code: "options" });
  room.unsubscribe();
  assert.equal(tide.channel("room"), room);
  room.unsubscribe();
  assert.equal(tide.channel("room"), undefined);
  assert.equal(socket.asked("unsubscribe").length, 1);
});

test("follow gives the messages now and after every change, until it is stopped", async () => {
  const { tide, socket } = await live();
  const told = [];
  const stop = tide.follow("room", undefined, (messages) => told.push(messages.length));
  socket.version("create", 1, "a");
  await pause();
  assert.deepEqual([told[0], told.at(-1)], [0, 1]);
  assert.equal(tide.messages("room"), tide.messages("room"));
  stop();
  stop(); // the use of the one who subscribed first is not ended by this
  assert.equal(tide.channel("room").state, "live");
  assert.deepEqual(tide.messages("nowhere"), []);
});

test("a private channel is authorized at every connection", async () => {
  const asked = [];
  const authorize = async (...of) => asked.push(of) && { auth: `k:${of[1]}`, channel_data: "{}" };
  const tide = client({ authorize });
  const room = tide.subscribe("presence-room");
  await until(() => sockets.length);
  const [socket] = sockets;
  socket.establish();
  await until(() => socket.sent.length);
  assert.deepEqual(socket.asked("subscribe"), [{ channel: "presence-room", auth: "k:1.1", channel_data: "{}" }]);
  socket.succeed("presence-room", 2, "s1", { presence: { ids: ["ana"], hash: { ana: { n: 1 } }, count: 1 } });
  assert.deepEqual(room.members, [{ id: "ana", info: { n: 1 } }]);
  const told = [];
  room.on("presence", (change) => told.push(change));
  const person = (name, data) => socket.say({ event: `sockudo_internal:${name}`, channel: "presence-room", data: JSON.stringify(data) });
  person("member_added", { user_id: "bob", user_info: { n: 2 } });
  person("presence_update", { user_id: "bob", user_info: { n: 3 } });
  assert.deepEqual(room.members, [{ id: "ana", info: { n: 1 } }, { id: "bob", info: { n: 3 } }]);
  person("member_removed", { user_id: "ana" });
  assert.deepEqual(told.map(({ type, id }) => [type, id]), [["join", "bob"], ["update", "bob"], ["leave", "ana"]]);
  room.updatePresence({ n: 4 });
  assert.deepEqual(socket.sent.at(-1), { event: "sockudo:presence_update", data: { user_info: { n: 4 } }, channel: "presence-room" });
  const next = await reconnected(socket);
  assert.deepEqual(next.asked("resume")[0].channel_positions, { "presence-room": { stream_id: "s1", serial: 2 } });
  next.system("resume_success", { recovered: [{ channel: "presence-room" }], failed: [] });
  await until(() => next.asked("subscribe").length);
  assert.deepEqual(asked, [["presence-room", "1.1"], ["presence-room", "2.1"]]);
});

test("who is not let in is told, and asked again if it was let in before", async () => {
  assert.throws(() => client().subscribe("private-room"), { code: "authorize" });
  let isDown = true;
  const authorize = async () => {
    if (isDown) throw new Error("the endpoint is down");
    return { auth: "k:x" };
  };
  const tide = client({ authorize });
  const room = tide.subscribe("private-room");
  const failures = [];
  room.on("error", (error) => failures.push(error));
  await until(() => sockets.length);
  sockets[0].establish();
  await assert.rejects(room.ready, /authorizing private-room failed: the endpoint is down/);
  assert.deepEqual([failures.length, room.state], [1, "failed"]);
  isDown = false;
  const again = tide.subscribe("private-room");
  await until(() => sockets[0].asked("subscribe").length);
  sockets[0].succeed("private-room", 1);
  isDown = true;
  const next = await reconnected(sockets[0]);
  next.system("resume_success", { recovered: [{ channel: "private-room" }], failed: [] });
  await until(() => sockets.length === 3); // it tries anew, over another connection
  isDown = false;
  sockets[2].establish();
  sockets[2].system("resume_success", { recovered: [{ channel: "private-room" }], failed: [] });
  await until(() => sockets[2].asked("subscribe").length);
  sockets[2].succeed("private-room", 1);
  assert.equal(again.state, "live");
});

test("a refused subscription fails with what the server says; others go on", async () => {
  const { tide, room, socket } = await live();
  const refused = tide.subscribe("no*name");
  const failures = [];
  refused.on("error", (error) => failures.push(error));
  socket.system("error", { code: 4300, message: "a channel name holds ..." });
  socket.system("subscription_error", { type: "ChannelError", error: "a channel name holds ...", status: 400 }, { channel: "no*name" });
  await assert.rejects(refused.ready, { code: 400, message: "no*name: a channel name holds ..." });
  assert.deepEqual([failures.length, errors.length, room.state], [1, 0, "live"]);
});

test("a token is fetched for every connection and when it has expired", async () => {
  let count = 0;
  const tide = client({ token: async () => `t${++count}` });
  const room = tide.subscribe("room");
  await until(() => sockets.length);
  const [socket] = sockets;
  assert.equal(socket.url.searchParams.get("token"), "t1");
  assert.equal(`${socket.url.origin}${socket.url.pathname}`, "ws://host/base/app/k");
  socket.establish();
  socket.succeed("room");
  socket.system("token_expired", { code: 40142, reason: "expired" });
  await until(() => socket.asked("auth").length);
  assert.deepEqual(socket.asked("auth"), [{ token: "t2" }]);
  const next = await reconnected(socket, 4009); // its time was over: there is a new one to be had
  assert.equal(next.url.searchParams.get("token"), "t3");
  assert.equal(room.state, "interrupted");
});

test("a token that cannot be fetched is tried again", async () => {
  let count = 0;
  client({ token: () => (++count < 3 ? Promise.reject(new Error("401 of the application")) : "good") }).subscribe("room");
  await until(() => sockets.length);
  assert.deepEqual(errors.map(({ message }) => message), Array(2).fill("no token: 401 of the application"));
  assert.equal(sockets[0].url.searchParams.get("token"), "good");
});

test("close codes: who is sent away stays away, who may come back comes back", async () => {
  const { tide, room, socket } = await live();
  socket.system("error", { code: 4001, message: "Application does not exist" });
  socket.onclose({ code: 4001 });
  assert.equal(tide.state, "failed");
  assert.equal(room.state, "failed");
  assert.match(errors.at(-1).message, /for good: 4001: Application does not exist/);
  await assert.rejects(room.publish("ai-input", "x"), { code: "closed" });
  tide.subscribe("room"); // begins again
  await until(() => sockets.length === 2);
  sockets[1].establish();
  for (const code of [4200, 4100, 1006, 4201]) await reconnected(sockets.at(-1), code);
  assert.equal(sockets.length, 6);
  sockets.at(-1).onclose({ code: 4009 });
  assert.equal(tide.state, "failed");
});

test("a silent connection is asked for a sign of life and then given up", async () => {
  const { tide, socket } = await live();
  let now = performance.now();
  performance.now = () => now;
  try {
    const { _: core } = tide;
    core.watch();
    assert.equal(socket.asked("ping").length, 0);
    now += 26_000;
    core.watch();
    assert.equal(socket.asked("ping").length, 1);
    socket.say({ event: "sockudo:pong" });
    now += 20_000;
    core.watch();
    assert.equal(tide.state, "connected");
    now += 10_000;
    core.watch();
    now += 10_001;
    core.watch();
    assert.equal(tide.state, "waiting");
    assert.equal(socket.isClosed, true);
  } finally {
    delete performance.now;
  }
});

test("waits between attempts grow to the most and vary", async () => {
  const waits = [];
  const original = globalThis.setTimeout;
  const tide = client({ retry: { first: 100, most: 1000 } });
  tide.subscribe("room");
  await until(() => sockets.length);
  globalThis.setTimeout = (work, ms) => waits.push(ms) && original(work, 0);
  try {
    for (let n = 1; n <= 6; n++) {
      sockets.at(-1).onclose({ code: 1006 });
      await new Promise((resolve) => original(resolve, 5));
    }
  } finally {
    globalThis.setTimeout = original;
  }
  assert.deepEqual(errors.map(({ code }) => code), ["unreachable"]); // told once
  assert.match(errors[0].message, /cannot connect to ws:\/\/host\/base\/app\/k \(1006\); trying again/);
  [100, 200, 400, 800, 1000, 1000].forEach((wait, n) => {
    assert.ok(waits[n] >= wait * 0.8 && waits[n] <= wait * 1.2, `${waits}`);
  });
});

/** Durable events that a socket was sent. */
const inputs = ({ sent }) => sent.filter(({ event }) => event.startsWith("ai-"));

test("a durable publish resolves with its message, once, through lost connections", async () => {
  const { room, socket } = await live();
  const published = room.publish("ai-input", { text: "hi" }, { extras: { ai: { transport: { role: "user" } } }, id: "my-id" });
  assert.deepEqual(inputs(socket), [{
    event: "ai-input",
    channel: "room",
    data: { text: "hi" },
    extras: { ai: { transport: { role: "user" } } },
    message_id: "my-id",
  }]);
  const next = await reconnected(socket);
  const offline = room.publish("ai-input", "second");
  next.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  assert.equal(inputs(next).length, 0);
  next.succeed("room", 0);
  assert.deepEqual(inputs(next).map(({ data }) => data), [{ text: "hi" }]); // one after the other
  next.version("create", 1, '{"text":"hi"}', { event: "ai-input", message_id: "my-id" });
  assert.deepEqual(inputs(next).map(({ data }) => data), [{ text: "hi" }, "second"]);
  next.say({ event: "sockudo:pong" });
  next.version("create", 2, "second", { event: "ai-input", message: "B", history: 2, message_id: inputs(next)[1].message_id });
  next.say({ event: "sockudo:pong" });
  assert.equal((await published).serial, "A");
  assert.equal((await offline).text, "second");
  const third = await reconnected(next);
  third.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  third.succeed("room", 2);
  assert.equal(inputs(third).length, 0);
});

test("publishes stay in order when the server does not want one yet", async () => {
  const { room, socket } = await live();
  const { setTimeout: original } = globalThis;
  const first = room.publish("ai-input", "1", { id: "one" });
  const second = room.publish("ai-input", "2", { id: "two" });
  globalThis.setTimeout = (work, ms) => original(work, ms === 1000 ? 30 : ms);
  try {
    const data = { code: 4301, message: "too many client events", reason: "rate_limited", message_id: "one" };
    socket.system("error", data, { channel: "room" });
    socket.say({ event: "sockudo:pong" }); // of the one that was refused
    await pause(10);
    assert.deepEqual(inputs(socket).map(({ message_id: id }) => id), ["one"]);
    await until(() => inputs(socket).length === 2);
    socket.say({ event: "sockudo:pong" }); // the server has it, and its echo follows
    socket.version("create", 1, "1", { event: "ai-input", message_id: "one" });
    socket.version("create", 2, "2", { event: "ai-input", message: "B", history: 2, message_id: "two" });
    assert.deepEqual([(await first).text, (await second).text], ["1", "2"]);
    assert.deepEqual(inputs(socket).map(({ message_id: id }) => id), ["one", "one", "two"]);
  } finally {
    globalThis.setTimeout = original;
  }
});

test("a publish that was committed before the cut is found in the replay and not repeated", async () => {
  const { room, socket } = await live();
  const published = room.publish("ai-input", "hi", { id: "my-id" });
  const next = await reconnected(socket);
  next.version("create", 1, "hi", { event: "ai-input", message_id: "my-id" });
  next.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  next.succeed("room", 1);
  assert.equal((await published).text, "hi");
  assert.equal(inputs(next).length, 0);
});

test("a publish that is sent again and was there already is done when the server has it", async () => {
  const { room, socket } = await live();
  const published = room.publish("ai-input", "hi", { id: "my-id" });
  const next = await reconnected(socket);
  const failed = { channel: "room", code: "stream_reset", reason: "stream_id_mismatch" };
  next.system("resume_success", { recovered: [], failed: [failed] });
  next.succeed("room", 7, "s2");
  assert.deepEqual(next.sent.slice(-2).map(({ event }) => event), ["ai-input", "sockudo:ping"]);
  next.say({ event: "sockudo:pong" });
  assert.equal(await published, undefined);
  const cut = room.publish("ai-input", "hi again");
  next.say({ event: "sockudo:pong" });
  next.onclose({ code: 1006 });
  assert.equal(await cut, undefined); // on disk, and not to be sent again
});

test("what is published during a rewind is sent once", async () => {
  const { room, socket } = await live({ rewind: 1 });
  const published = room.publish("ai-input", "hi", { id: "my-id" });
  socket.version("create", 1, "hi", { event: "ai-input", message_id: "my-id" });
  socket.system("rewind_complete", { historical_count: 0, live_count: 1 }, { channel: "room" });
  assert.equal((await published).text, "hi");
  assert.equal(inputs(socket).length, 1);
});

test("a refused publish rejects with the server's codes; the connection stays", async () => {
  const { tide, room, socket } = await live();
  const cancelling = room.cancel({ runId: "r1" });
  const { message_id: id, data, extras } = inputs(socket).at(-1);
  assert.deepEqual([data, extras], [{ runId: "r1" }, { ai: { transport: { "run-id": "r1" } } }]);
  socket.system("error", { code: 4301, message: "not yours", ai_code: 104003, reason: "ai_event_not_permitted", message_id: id }, { channel: "room" });
  await assert.rejects(cancelling, { code: 4301, aiCode: 104003, reason: "ai_event_not_permitted", message: "not yours" });
  assert.equal(tide.state, "connected");
  socket.say({ event: "sockudo:pong" });
  for (const what of [{ own: true }, { clientId: "ana" }, { all: true }]) {
    room.cancel(what).catch(() => {});
    socket.say({ event: "sockudo:pong" });
  }
  assert.deepEqual(inputs(socket).slice(-3).map((frame) => [frame.event, frame.data]), [
    ["ai-cancel", { own: true }],
    ["ai-cancel", { clientId: "ana" }],
    ["ai-cancel", { all: true }],
  ]);
  await assert.rejects(room.cancel({}), TypeError);
  await assert.rejects(room.cancel({ own: true, all: true }), TypeError);
});

test("what clients may not publish, and what waits too long, is refused here", async () => {
  const { room, socket } = await live();
  await assert.rejects(room.publish("chat.message", "x"), /is for your server to publish/);
  await assert.rejects(room.publish("ai-input", "x".repeat(65_536)), { code: "size" });
  await room.publish("client-typing", { on: true });
  assert.deepEqual(socket.sent.at(-1), { event: "client-typing", channel: "room", data: { on: true } });
  const waiting = Array.from({ length: 100 }, () => room.publish("ai-input", "x"));
  await assert.rejects(room.publish("ai-input", "x"), { code: "overflow" });
  socket.onclose({ code: 1006 });
  await assert.rejects(room.publish("client-typing", 1), { code: "offline" });
  clients[0].close();
  for (const publish of waiting) await assert.rejects(publish, { code: "closed" });
  assert.throws(() => clients[0].subscribe("room"), { code: "closed" });
});

test("pages of history are read one after another, and again after a cut", async () => {
  const { room, socket } = await live();
  const item = (n) => ({
    message: {
      event: "sockudo:message.create",
      name: "answer",
      data: `${n}`,
      serial: n,
      extras: { headers: { sockudo_action: "message.create", sockudo_message_serial: `M${n}`, sockudo_history_serial: n } },
    },
  });
  const newest = room.history({ limit: 2 });
  const older = room.history({ limit: 2, before: 4 });
  assert.deepEqual(socket.asked("channel_history"), [{ channel: "room", limit: 2, direction: "newest_first" }]);
  const page = (items, end) => [
    "channel_history",
    { items, direction: "newest_first", bounds: { start_serial: null, end_serial: end }, has_more: true },
    { channel: "room" },
  ];
  socket.system(...page([item(2)], 2)); // for a read that was given up
  socket.system(...page([item(5), item(4)], null));
  assert.deepEqual((await newest).messages.map(({ text }) => text), ["4", "5"]);
  assert.deepEqual(socket.asked("channel_history").at(-1), { channel: "room", limit: 2, direction: "newest_first", end_serial: 3 });
  const next = await reconnected(socket);
  next.system("resume_success", { recovered: [{ channel: "room" }], failed: [] });
  next.succeed("room", 0);
  next.system(...page([item(3), item(2)], 3));
  const found = await older;
  assert.deepEqual([found.messages.map(({ historySerial }) => historySerial), found.hasMore], [[2, 3], true]);
  const refused = room.history({ after: found.messages[1] });
  assert.deepEqual(next.asked("channel_history").at(-1), { channel: "room", limit: 50, direction: "oldest_first", start_serial: 4 });
  next.system("error", { code: 4009, message: "Not allowed to read the history" });
  await assert.rejects(refused, { code: 4009 });
  assert.deepEqual(await room.history({ before: 1 }), { messages: [], hasMore: false });
});

test("runs are read from the messages that are kept", async () => {
  const { room, socket } = await live();
  const run = (serial, name, transport) =>
    socket.version("create", serial, "", { message: `M${serial}`, history: serial, event: name, name, extras: { ai: { transport } } });
  run(1, "ai-run-start", { "run-id": "r1", "run-client-id": "ana" });
  run(2, "ai-output", { "run-id": "r1", status: "streaming" });
  run(3, "ai-run-start", { "run-id": "r2" });
  run(4, "ai-run-suspend", { "run-id": "r2" });
  await pause();
  const shown = () => room.runs.map(({ id, status, clientId, messages }) => [id, status, clientId, messages.length]);
  assert.deepEqual(shown(), [["r1", "running", "ana", 1], ["r2", "suspended", undefined, 0]]);
  assert.equal(room.runs, room.runs);
  run(5, "ai-cancel", { "run-id": "r1" });
  run(6, "ai-run-end", { "run-id": "r1", "run-reason": "cancelled" });
  run(7, "ai-run-end", { "run-id": "r2", "run-reason": "error", "error-code": "orphan_timeout" });
  await pause();
  assert.deepEqual(shown(), [["r1", "cancelled", "ana", 1], ["r2", "error", undefined, 0]]);
  assert.equal(room.runs[1].errorCode, "orphan_timeout");
});

test("a run is its first owner's, and only agents say how it fares", async () => {
  const { room, socket } = await live();
  const run = (serial, name, transport) =>
    socket.version("create", serial, "", { message: `M${serial}`, history: serial, event: name, name, extras: { ai: { transport } } });
  run(1, "ai-run-start", { "run-id": "r1", "run-client-id": "ana" });
  run(2, "ai-run-start", { "run-id": "r1", "run-client-id": "eve" });
  run(3, "ai-input", { "run-id": "r1", "error-code": "made_up" });
  run(4, "ai-cancel", { "run-id": "r1", "error-code": "made_up" });
  await pause();
  assert.deepEqual(room.runs.map(({ clientId, errorCode }) => [clientId, errorCode]), [["ana", undefined]]);
});

test("a channel is resumed whatever it is called", async () => {
  const tide = client();
  tide.subscribe("__proto__");
  await until(() => sockets.length);
  sockets[0].establish();
  sockets[0].succeed("__proto__", 3);
  const next = await reconnected(sockets[0]);
  const [{ channel_positions: positions }] = next.asked("resume");
  assert.deepEqual(Object.entries(positions), [["__proto__", { stream_id: "s1", serial: 3 }]]);
});

test("an id that waits to be confirmed is not given to another event", async () => {
  const { tide, room, socket } = await live();
  const other = tide.subscribe("other");
  socket.succeed("other", 0);
  const first = room.publish("ai-input", "x", { id: "same" });
  const again = room.publish("ai-input", "x", { id: "same" });
  await assert.rejects(room.publish("ai-input", "y", { id: "same" }), { code: "id" });
  await assert.rejects(other.publish("ai-input", "x", { id: "same" }), { code: "id" });
  socket.version("create", 1, "x", { message_id: "same" });
  assert.equal(await first, await again);
  assert.equal((await first).text, "x");
});

test("a page of history that no server may send leaves a message partial", async () => {
  for (const items of [null, [null], [{ message: null }], [{ message: { extras: { headers: { sockudo_action: "message.create" } } } }]]) {
    const { room, socket } = await live({}, 5);
    socket.version("append", 6, "c", { history: 1 });
    await pause();
    const bounds = { start_serial: 1, end_serial: 1 };
    socket.system("channel_history", { items, direction: "newest_first", bounds, has_more: false }, { channel: "room" });
    await pause();
    assert.deepEqual([texts(room), room.messages[0].partial], [["c"], true]);
    room.unsubscribe();
    sockets.length = 0;
  }
});

test("disconnect keeps what is known and connect goes on from it", async () => {
  const { tide, room, socket } = await live();
  socket.version("create", 1, "a");
  tide.disconnect();
  assert.deepEqual([tide.state, room.state, socket.isClosed], ["disconnected", "interrupted", true]);
  await pause();
  assert.deepEqual([sockets.length, texts(room)], [1, ["a"]]);
  tide.connect();
  sockets[1].establish();
  assert.equal(sockets[1].asked("resume").length, 1);
});

test("frames that no server may send end the connection, not the page", async () => {
  const { tide, socket } = await live();
  socket.onmessage({ data: "not json" });
  assert.equal(tide.state, "waiting");
  assert.equal(errors[0].code, "protocol");
  await until(() => sockets.length === 2);
  sockets[1].establish();
  assert.equal(tide.state, "connected");
});

test("values of a wrong type end the connection, and what the page reads stays readable", async () => {
  const wrong = [
    (socket) => socket.version("create", 1, "a", { name: 7, extras: { ai: { transport: { "run-id": "r" } } } }),
    (socket) => socket.version("create", "1", "a"),
    (socket) => socket.version("create", { valueOf: 1 }, "a"),
    (socket) => socket.version("create", 2 ** 53, "a"),
    (socket) => socket.version("create", 1, "a", { history: [1] }),
    (socket) => socket.version("append", 1, { toString: 1 }),
    (socket) => socket.version("append", 1, ["a"]),
    (socket) => socket.version("append", 1, "a", { rolled: [2] }),
    (socket) => socket.version("append", 1, "a", { rolled: [0, 1] }),
    (socket) => socket.version("append", 1, "a", { rolled: "a" }),
    (socket) => socket.version("create", 1, "a", { rolled: [1] }),
    (socket) => socket.say({ event: 7, channel: "room", serial: 1, stream_id: "s1" }),
    (socket) => socket.succeed("room", "0"),
    (socket) => socket.say({ event: "sockudo:connection_established", data: { activity_timeout: 120 } }),
    (socket) => socket.say({ event: "sockudo:connection_established", data: { socket_id: "1.1", activity_timeout: "soon" } }),
  ];
  for (const say of wrong) {
    sockets.length = errors.length = 0;
    const tide = client({ retry: { first: 10_000, most: 10_000 } });
    const room = tide.subscribe("room");
    await until(() => sockets.length);
    sockets[0].establish();
    if (!`${say}`.includes("succeed")) sockets[0].succeed("room");
    say(sockets[0]);
    await pause();
    assert.deepEqual([tide.state, errors[0]?.code], ["waiting", "protocol"], `${say}`);
    assert.deepEqual([room.messages, room.runs], [[], []], `${say}`);
    tide.close();
  }
});

test("names and keys of objects are nothing but data", async () => {
  const { room, socket } = await live();
  const own = '{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}';
  const headers = `{"sockudo_action":"message.create","sockudo_message_serial":"__proto__","sockudo_history_serial":1,"__proto__":{"polluted":1}}`;
  socket.onmessage({
    data: `{"event":"answer","name":"ai-output","channel":"room","serial":1,"stream_id":"s1","message_id":"__proto__","data":${own},
      "tags":${own},"__proto__":{"polluted":1},"extras":{"__proto__":{"polluted":1},"ai":{"transport":{"run-id":"__proto__"}},"headers":${headers}}}`,
  });
  await pause();
  assert.deepEqual(errors, []);
  assert.equal({}.polluted, undefined);
  assert.equal(room.messages[0].polluted, undefined);
  assert.deepEqual(room.runs.map(({ id }) => id), ["__proto__"]);
});

test("one message that never ends is let go, and said to be", async () => {
  const { room, socket } = await live();
  room.on("error", (error) => errors.push(error));
  const much = "x".repeat(9 * 1024 * 1024);
  socket.version("create", 1, much);
  for (let n = 2; n <= 5; n++) socket.version("append", n, much);
  socket.version("create", 6, "next", { message: "B", history: 2 });
  await pause();
  assert.deepEqual(texts(room), ["next"]);
  assert.deepEqual(errors.map(({ code }) => code), ["overflow"]);
});

test("what was added to a message is kept apart only while its beginning is awaited", async () => {
  const { room, socket } = await live({}, 5);
  const kept = () => room._.view.kept.get("A");
  for (let n = 6; n < 20_100; n++) socket.version("append", n, n % 2 ? "" : "x", { history: 1 });
  assert.ok((kept().parts?.length ?? 0) <= 10_000);
  const bounds = { start_serial: 1, end_serial: 1 };
  socket.system("channel_history", { items: [], direction: "newest_first", bounds, has_more: false }, { channel: "room" });
  await pause();
  socket.version("append", 20_100, "y", { history: 1 });
  await pause();
  assert.equal(kept().parts, undefined);
  assert.deepEqual([room.messages[0].partial, room.messages[0].text.length, errors], [true, 10_048, []]);
});

test("a server that says again and again that a token expired gets one at a time", async () => {
  let count = 0;
  const tide = client({ token: () => (++count, pause(50).then(() => "t")) });
  tide.connect();
  await until(() => sockets.length);
  sockets[0].establish();
  for (let n = 0; n < 100; n++) sockets[0].system("token_expired", { code: 40142 });
  await until(() => sockets[0].asked("auth").length);
  assert.deepEqual([count, sockets[0].asked("auth").length], [2, 1]);
  sockets[0].system("token_expired", { code: 40142 });
  await until(() => sockets[0].asked("auth").length === 2);
});

test("a crowd on a presence channel costs what changed", async () => {
  const tide = client({ authorize: () => ({ auth: "k:s", channel_data: "{}" }) });
  const room = tide.subscribe("presence-room");
  await until(() => sockets.length);
  sockets[0].establish();
  await until(() => sockets[0].asked("subscribe").length);
  sockets[0].succeed("presence-room", 0, "s1", { presence: { hash: {} } });
  const changes = [];
  room.on("presence", ({ type }) => changes.push(type));
  const before = room.members;
  const { freeze } = Object;
  let frozen = 0;
  Object.freeze = (value) => (frozen++, freeze(value));
  for (let n = 0; n < 1000; n++) {
    sockets[0].say({ event: "sockudo_internal:member_added", channel: "presence-room", data: { user_id: `u${n}`, user_info: null } });
  }
  Object.freeze = freeze;
  assert.ok(frozen < 5000, `${frozen} objects were made`);
  assert.deepEqual([changes.length, room.members.length, before.length], [1000, 1000, 0]);
  assert.equal(room.members, room.members);
});

test("what is missing is said before anything is opened", async () => {
  assert.throws(() => new Tidelog({}), /needs the key of the app/);
  const nowhere = new Tidelog({ key: "k", WebSocket: FakeSocket });
  assert.throws(() => nowhere.subscribe("room"), /needs the address of the server/);
  assert.deepEqual(nowhere.messages("room"), []); // as on a server that renders a page
  const { WebSocket: known } = globalThis;
  delete globalThis.WebSocket;
  try {
    assert.throws(() => new Tidelog({ key: "k", url: "http://host" }).subscribe("room"), /install "ws"/);
  } finally {
    if (known) globalThis.WebSocket = known;
  }
  const tide = client();
  for (const rewind of [0, -1, 1.5, "x", { seconds: 0 }]) assert.throws(() => tide.subscribe("r", { rewind }), RangeError);
  assert.throws(() => tide.subscribe("r", { limit: 0 }), RangeError);
  assert.throws(() => tide.on("state"), TypeError);
  assert.ok(new TidelogError("x", "y") instanceof Error);
  assert.equal(sockets.length, 0);
});
