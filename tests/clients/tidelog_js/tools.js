// What the tests use inside a page or a Node process; `set` is given where tidelog.js and the app are.

async ({ module, url, key, secret }) => {
  const { Tidelog } = await import(module);
  const encoded = (text) => new TextEncoder().encode(text);
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const signer = await crypto.subtle.importKey("raw", encoded(secret), algorithm, false, ["sign"]);

  /** What an application's server would sign (channels 2.2). */
  const sign = async (text) => {
    const bytes = new Uint8Array(await crypto.subtle.sign("HMAC", signer, encoded(text)));
    return `${key}:${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  };

  globalThis.tides = {};
  globalThis.notes = {};

  /** A client under a name of its own; `user` is who it is on presence channels. */
  globalThis.open = (name, { user, ...options } = {}) => {
    const authorize = async (channel, socketId) => {
      const data = channel.startsWith("presence-") ? JSON.stringify(user) : undefined;
      const signed = `${socketId}:${channel}${data === undefined ? "" : `:${data}`}`;
      return { auth: await sign(signed), channel_data: data };
    };
    const tide = new Tidelog({
      key,
      url,
      authorize,
      WebSocket: globalThis.WebSocketClass,
      retry: { first: 20, most: 100 },
      ...options,
    });
    globalThis.tides[name] = tide;
    const note = (globalThis.notes[name] = { states: [], errors: [], events: [], resets: [], pieces: {}, texts: {} });
    tide.on("state", (state) => note.states.push(state));
    tide.on("error", ({ code, message }) => note.errors.push([code, message]));
    return tide;
  };

  /** Follow a channel and note everything that is told of it. */
  globalThis.follow = async (name, channel, options) => {
    const followed = globalThis.tides[name].subscribe(channel, options);
    const note = globalThis.notes[name];
    followed.on("message", (message) => {
      note.events.push([message.name, message.action, message.text]);
      if (message.historySerial) (note.texts[message.serial] ??= []).push(message.text);
    });
    followed.on("version", ({ action, data, message }) => {
      (note.pieces[message.serial] ??= []).push([action, data ?? ""]);
    });
    followed.on("reset", (reset) => note.resets.push(reset));
    followed.on("error", ({ code, message }) => note.errors.push([code, message]));
    await followed.ready;
    return followed.messages.length;
  };

  globalThis.shown = (name, channel) =>
    globalThis.tides[name].messages(channel).map(({ serial, name: event, data, action, status, partial, extras, version }) => ({
      serial,
      name: event,
      data,
      action,
      status,
      partial,
      extras,
      version,
    }));

  /** Wait until something becomes true that nothing tells of. */
  globalThis.until = async (condition) => {
    for (let value; ; await new Promise((resolve) => setTimeout(resolve, 10))) {
      if ((value = condition())) return value;
    }
  };
};
