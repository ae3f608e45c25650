// The lines beside each part, with this server's address and keys. A test runs them as they are shown.

export function channelSamples({ url, app, channel }) {
  return {
    Python: `import asyncio

from tidelog.client import ChannelPublisher


async def main() -> None:
    async with ChannelPublisher("${url}", "${app.id}", "${app.key}", "${app.secret}") as publisher:
        await publisher.publish("${channel}", "note", "hello from Python")
        async with publisher.run("${channel}", client_id="ada") as run:
            for word in "An answer grows word by word.".split():
                await run.write(word + " ")  # raises RunCancelled when somebody presses stop


asyncio.run(main())
`,
    JavaScript: `import { Tidelog } from "${url}/tidelog.js";

const tide = new Tidelog({ key: "${app.key}" });
const chat = tide.subscribe("${channel}", { rewind: 10 });
chat.on("message", (message) => {
  document.querySelector("#answer").textContent = message.text; // called as it grows
});
// with a token that allows it: chat.publish("ai-input", "hello"), chat.cancel({ all: true })
`,
    curl: `BODY='{"name":"note","channel":"${channel}","data":"hello from curl"}'
QUERY="auth_key=${app.key}&auth_timestamp=$(date +%s)&auth_version=1.0&body_md5=$(printf %s "$BODY" | md5sum | cut -d' ' -f1)"
SIGNATURE=$(printf 'POST\\n/apps/${app.id}/events\\n%s' "$QUERY" | openssl dgst -sha256 -hmac ${app.secret} | sed 's/.* //')
curl -fsS -H 'content-type: application/json' -d "$BODY" "${url}/apps/${app.id}/events?$QUERY&auth_signature=$SIGNATURE"
`,
  };
}

export function taskSamples({ url, sync, partition }, token) {
  const socket = url.replace(/^http/, "ws");
  return {
    Python: `import asyncio
import time
import uuid

import jwt

from tidelog.client import SyncClient
from tidelog.sync.protocol.profiles import Model

model = Model.parse({"tasks": {"kind": "tree", "actions": ["treePush", "treeUpdate", "treeDelete"]}}, {}, 1)


async def token() -> str:  # your backend makes it for the user who is logged in
    claims = {"client_id": "python", "exp": int(time.time()) + 3600, "allowed_partitions": ["${partition}"]}
    return jwt.encode(claims, "${sync.secret}", "HS256")


async def main() -> None:
    async with SyncClient(
        "${socket}/sync", client_id="python", token=token, store="python.db", model=model, partitions=["${partition}"]
    ) as client:
        value = {"id": str(uuid.uuid4()), "text": "A task from Python"}
        payload = {"target": "tasks", "value": value, "options": {"position": "last"}}
        draft = await client.submit(partitions=["${partition}"], event={"type": "treePush", "payload": payload})
        await client.wait(draft.id)


asyncio.run(main())
`,
    JavaScript: `// A whole client, with drafts in IndexedDB, is npm's insieme: docs/howto/insieme.md
const socket = new WebSocket("${socket}/sync");
const send = (type, payload) =>
  socket.send(JSON.stringify({ type, payload, msg_id: crypto.randomUUID(), timestamp: Date.now(), protocol_version: "1.0" }));
const value = { id: crypto.randomUUID(), text: "A task from JavaScript" };
const event = { type: "treePush", payload: { target: "tasks", value, options: { position: "last" } } };
socket.onopen = () => send("connect", { client_id: "javascript", token: "${token}" }); // good for an hour
socket.onmessage = ({ data }) => {
  const { type, payload } = JSON.parse(data);
  if (type === "connected") send("submit_events", { events: [{ id: crypto.randomUUID(), partitions: ["${partition}"], event }] });
  console.log(type, payload);
};
`,
    curl: `TOKEN=$(curl -fsS "${url}/playground/sync-token?client_id=curl" | cut -d'"' -f4)
curl -fsS -H "authorization: Bearer $TOKEN" -H 'content-type: application/json' ${url}/sync/v1/sync -d '{
  "type": "sync", "msg_id": "1", "timestamp": 0, "protocol_version": "1.0",
  "payload": {"partitions": ["${partition}"], "since_committed_id": 0}
}'
`,
  };
}

export function meshSamples({ url }) {
  return {
    Shell: `# The admin token of development mode is known to everybody.
export TIDELOG_ADMIN_TOKEN=dev-admin-token
tidelog mesh create harbour --url ${url}
tidelog mesh join "$(tidelog mesh invite harbour --url ${url})" --name carol --data-dir ./carol
tidelog daemon up --data-dir ./carol &
`,
    Python: `import asyncio

from tidelog.client import MeshClient


async def main() -> None:
    # Under a key of your own a program that was killed can simply send again.
    sent = await MeshClient("./carol").send("topic:tides", "hello", idempotency_key="order-17")
    print(sent.status)  # it is on the disk


asyncio.run(main())
`,
    curl: `curl -fsS --unix-socket ./carol/daemon.sock http://localhost/v1/send \\
  -H "Idempotency-Key: order-18" -d '{"to": "topic:tides", "message": "hello from curl"}'
`,
  };
}
