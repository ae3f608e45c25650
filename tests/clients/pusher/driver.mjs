// Drives pusher-js, unmodified: a command per line of JSON on standard input, a line of JSON on
// standard output for everything a client is told. One process holds any number of clients.
//   node driver.mjs PORT KEY SECRET, with pusher-js in ./node_modules of the working directory

import { createHmac } from "node:crypto";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const Pusher = createRequire(`${process.cwd()}/`)("pusher-js");
const [port, key, secret] = process.argv.slice(2);
const clients = {};

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const sign = (text) => `${key}:${createHmac("sha256", secret).update(text).digest("hex")}`;

const commands = {
  connect({ client, user, member, app_key, wrong }) {
    const forged = (auth) => (wrong ? `${auth.slice(0, -1)}${auth.endsWith("0") ? "1" : "0"}` : auth);
    const pusher = new Pusher(app_key ?? key, {
      cluster: "",
      wsHost: "127.0.0.1",
      wsPort: Number(port),
      forceTLS: false,
      enabledTransports: ["ws"],
      channelAuthorization: {
        customHandler({ socketId, channelName }, callback) {
          const data = channelName.startsWith("presence-") ? JSON.stringify(member) : undefined;
          const text = `${socketId}:${channelName}${data === undefined ? "" : `:${data}`}`;
          callback(null, { auth: forged(sign(text)), channel_data: data });
        },
      },
      userAuthentication: {
        customHandler({ socketId }, callback) {
          const data = JSON.stringify(user);
          callback(null, { auth: forged(sign(`${socketId}::user::${data}`)), user_data: data });
        },
      },
    });
    clients[client] = pusher;
    pusher.connection.bind("state_change", ({ current }) =>
      say({ client, state: current, socket_id: pusher.connection.socket_id }),
    );
    pusher.connection.bind("error", (error) => say({ client, error }));
    pusher.user.bind_global((event, data) => say({ client, to_user: event, data }));
  },
  subscribe({ client, channel }) {
    const joined = clients[client].subscribe(channel);
    joined.bind_global((event, data) => {
      // A presence channel's events carry objects of pusher-js; what they hold is what matters.
      const is_snapshot = event === "pusher:subscription_succeeded" && data?.members;
      const told = is_snapshot ? { count: data.count, members: data.members, me: data.me } : data;
      say({ client, channel, event, data: told });
    });
  },
  bind({ client, channel, event }) {
    const tell = (data, about) => say({ client, bound: event, data, user_id: about?.user_id });
    clients[client].channel(channel).bind(event, tell);
  },
  unsubscribe({ client, channel }) {
    clients[client].unsubscribe(channel);
  },
  trigger({ client, channel, event, data }) {
    clients[client].channel(channel).trigger(event, data);
  },
  signin({ client }) {
    clients[client].signin();
  },
  disconnect({ client }) {
    clients[client].disconnect();
  },
  members({ client, channel }) {
    const { count, members } = clients[client].channel(channel).members;
    say({ client, channel, event: "members", data: { count, members } });
  },
};

createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    commands[command.do](command);
  })
  .on("close", () => process.exit(0));
