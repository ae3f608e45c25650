// The server that bench/sync.py compares tidelog with: insieme on its SQLite store and `ws`.
//
// Usage: node server.mjs DATABASE_FILE
// Prints one JSON line when it listens and ends when its standard input does.
//
// Everything that is the application's to decide costs nothing here: every token is its client's
// name, everybody may do everything and every event is valid.

import Database from "better-sqlite3";
import { createSqliteSyncStore, createSyncServer, createWsServerRuntime } from "insieme/node";
import { WebSocketServer } from "ws";

const database = new Database(process.argv[2]);
const store = createSqliteSyncStore(database, { journalMode: "WAL", synchronous: "FULL" });
await store.init();

const syncServer = createSyncServer({
  auth: { verifyToken: async (token) => ({ clientId: token, claims: {} }) },
  authz: { authorizeProject: async () => true },
  validation: { validate: async () => {} },
  store,
  clock: { now: () => Date.now() },
  // By default 200 messages a second of one connection, as ours: both are lifted for the bench.
  limits: { maxInboundMessagesPerWindow: 1_000_000 },
});

const wsServer = new WebSocketServer({ host: "127.0.0.1", port: 0 });
// No pings: the generator speaks only when it measures.
createWsServerRuntime({ wsServer, syncServer, keepAliveIntervalMs: 0 });
wsServer.on("listening", () => {
  const ready = {
    port: wsServer.address().port,
    node: process.version,
    sqlite: database.prepare("SELECT sqlite_version() AS v").get().v,
    // 2 is FULL
    synchronous: database.pragma("synchronous", { simple: true }),
    journal_mode: database.pragma("journal_mode", { simple: true }),
  };
  process.stdout.write(`${JSON.stringify(ready)}\n`);
});

process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
