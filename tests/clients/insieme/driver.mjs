// npm's insieme by its command session, the way applications use it that know no sync.
//
// Usage: node driver.mjs URL TOKEN CLIENT_ID
// Begins offline, writes commands, goes online by the package's offline transport, and then reads
// lines of JSON: {"submit": [command, ...]}, or {"wait": count} for that many commands of others.
// Prints a line of JSON for each.

import { createInterface } from "node:readline";
import {
  createBrowserWebSocketTransport,
  createCommandSyncSession,
  createInMemoryClientStore,
  createOfflineTransport,
} from "insieme/client";
import WebSocket from "ws";

const [url, token, clientId] = process.argv.slice(2);
const store = createInMemoryClientStore({
  materializedViews: [
    {
      name: "titles",
      initialState: () => [],
      reduce: ({ state, event }) => [...state, event.payload.title],
    },
  ],
});
const results = [];
const commands = [];
let isSynced = false;
let changed = () => {};
const until = async (holds) => {
  while (!holds()) await new Promise((resolve) => (changed = resolve));
};

const session = createCommandSyncSession({
  token,
  actor: { userId: `user of ${clientId}`, clientId },
  projectId: "p",
  transport: createOfflineTransport(),
  store,
  onCommittedCommand: ({ command, isFromCurrentActor }) => {
    if (!isFromCurrentActor) commands.push(command);
    changed();
  },
  onEvent: ({ type, payload }) => {
    if (["committed", "rejected"].includes(type)) results.push({ type, id: payload.id });
    if (type === "synced") isSynced = true;
    if (type === "error") results.push({ type, code: payload.code });
    changed();
  },
});

const actor = session.getActor();
const submit = (given) =>
  session.submitCommands(
    given.map((command) => ({ partition: "tasks", clientTs: 5, actor, projectId: "p", ...command })),
  );

await session.start();
await until(() => isSynced); // before that, going online and its own flush would meet
const first = `${clientId}-offline`;
await submit([{ id: first, type: "any", payload: { title: first } }]);
await session.setOnlineTransport(createBrowserWebSocketTransport({ url, WebSocketImpl: WebSocket }));
await until(() => results.some(({ id }) => id === first));
console.log(JSON.stringify(results));

for await (const line of createInterface({ input: process.stdin })) {
  const { submit: given, wait } = JSON.parse(line);
  if (given) {
    const ids = given.map(({ id }) => id);
    await submit(given);
    await until(() => ids.every((id) => results.some((result) => result.id === id)));
    console.log(JSON.stringify(results.filter((result) => ids.includes(result.id))));
  } else {
    await until(() => commands.length >= wait);
    await store.flushMaterializedViews();
    const titles = await store.loadMaterializedView({ viewName: "titles", partition: "tasks" });
    console.log(JSON.stringify({ commands, titles }));
  }
}
await session.close();
