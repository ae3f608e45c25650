"""What the others do: each flood is a process of its own that is told when to go and when to stop.

A flood keeps to a share of one core, so that what the well-behaved client feels comes from the
server and not from a machine that has too few cores for both; and it is started with a lower
priority. It says how many requests it made and what became of them.

Example: echo '{"port": 8080, ...}' | python -m neighbour_parts.floods bad_joins
"""

import asyncio
import contextlib
import functools
import json
import os
import secrets
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from mesh_parts.accepts import payload
from mesh_parts.brokers import TOPIC
from neighbour_parts.place import ENDPOINTS, FLOODER, Reach
from size_parts.channels import signed_get
from sync_parts.wire import SCHEMA
from tidelog.daemon.key_file import new_key
from tidelog.mesh.protocol.fingerprint import make_envelope
from tidelog.mesh.protocol.identity import MemberKey, from_base64url
from tidelog.sync.protocol.profiles import CANONICAL

CPU_SHARE = 0.25
"""Of one core, for each process."""
NICE = 10
PAUSE_S = 0.05
"""After something that was refused: a flood does not spin on a closed door."""

DRAIN_SECONDS = 30.0

encode = msgspec.json.encode


class Flood:
    """One process of a flood, while it goes."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.answers: Counter[str] = Counter()
        self._began, self._cpu = time.perf_counter(), time.process_time()

    async def turn(self) -> None:
        """Wait while this process has used more than its share."""
        used = time.process_time() - self._cpu
        ahead = used / CPU_SHARE - (time.perf_counter() - self._began)
        await asyncio.sleep(max(0.0, ahead))

    async def repeat(self, action: Callable[[], Awaitable[None]]) -> None:
        """For ever: whatever the server does to a connection, there is another one."""
        while True:
            try:
                await action()
            except (OSError, EOFError, ConnectionClosed, InvalidHandshake, TimeoutError) as error:
                self.answers[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_S)

    def told(self) -> dict[str, Any]:
        """What came of it."""
        seconds = time.perf_counter() - self._began
        return {
            "seconds": seconds,
            "cpu_s": time.process_time() - self._cpu,
            "answers": dict(self.answers),
        }

    # HTTP.

    async def posts(self, make: Callable[[], bytes]) -> None:
        """Requests on one connection until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.reach.port)
        try:
            while True:
                await self.turn()
                async with asyncio.timeout(30):
                    writer.write(make())
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                    await reader.readexactly(size)
                self.answers[head.split(b" ")[1].decode()] += 1
                if b"connection: close" in head.lower():
                    return
        finally:
            writer.transport.abort()

    def post_bytes(self, path: str, body: bytes) -> bytes:
        """A request without any token."""
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    # WebSocket.

    @asynccontextmanager
    async def socket(self, path: str) -> AsyncIterator[ClientConnection]:
        """A connection whose answers may be large, without a polite farewell."""
        async with connect(
            f"ws://127.0.0.1:{self.reach.port}{path}",
            max_size=None,
            compression=None,
            close_timeout=0.2,
            ping_interval=None,
        ) as connection:
            try:
                yield connection
            finally:
                connection.transport.abort()

    async def member(self, connection: ClientConnection, slug: str, seed: str) -> None:
        """Greet the broker as a member of a mesh does."""
        key = MemberKey.from_seed(bytes.fromhex(seed))
        hello = json.loads(await connection.recv())
        signature = key.sign_hello(slug, from_base64url(hello["challenge"]))
        greeting = {"type": "hello", "member_pubkey": key.public_hex, "signature": signature}
        await connection.send(encode(greeting).decode())
        while json.loads(await connection.recv())["type"] != "welcome":
            pass
        features = {"require": ["client_message_id_dedupe"], "optional": []}
        await connection.send(encode({"type": "feature_negotiation_request", **features}).decode())
        while json.loads(await connection.recv())["type"] != "feature_negotiation_response":
            pass


def send_text(ref: int, topic: str) -> str:
    """A new message to a topic."""
    envelope = make_envelope(
        destination_kind="topic", destination_ref=topic, body=payload(ref).encode()
    )
    fields = {
        "type": "send",
        "ref": ref,
        "client_message_id": secrets.token_hex(16),
        "request_fingerprint": envelope.fingerprint().hex(),
        **msgspec.json.decode(envelope.payload()),
    }
    return encode(fields).decode()


async def only_cpu(flood: Flood) -> None:
    """No request at all, the same share of the processor: what the machine alone does."""
    while True:
        until = time.process_time() + 0.001
        while time.process_time() < until:
            pass
        flood.answers["turns"] += 1
        await flood.turn()


async def bad_joins(flood: Flood) -> None:
    """Requests to join a mesh with an invite that nobody gave."""
    key = new_key()
    slug = flood.reach.slug

    def make() -> bytes:
        invite = secrets.token_urlsafe(32)
        fields = {
            "invite": invite,
            "member_pubkey": key.public_hex,
            "name": "nobody",
            "signature": key.sign_join(slug, invite, "nobody"),
        }
        return flood.post_bytes(f"/mesh/{slug}/members", encode(fields))

    await _side_by_side(*(flood.repeat(lambda: flood.posts(make)) for _ in range(4)))


async def deep_json(flood: Flood) -> None:
    """JSON of 60 kB that is nothing but depth, wherever one may speak before one is known."""
    deep = "[" * 30_000 + "]" * 30_000
    body = ('{"invite":' + deep + "}").encode()
    join = flood.post_bytes(f"/mesh/{flood.reach.slug}/members", body)
    subscribe = '{"event":"sockudo:subscribe","data":' + deep + "}"

    async def frames(path: str, text: str) -> None:
        async with flood.socket(path) as connection:
            while True:
                await flood.turn()
                await connection.send(text)
                await asyncio.wait_for(connection.recv(), 30)
                flood.answers["frame"] += 1

    app, mesh = f"/app/{flood.reach.app_key}?protocol=2", f"/mesh/{flood.reach.slug}/ws"
    await _side_by_side(
        flood.repeat(lambda: flood.posts(lambda: join)),
        flood.repeat(lambda: frames(app, subscribe)),
        flood.repeat(lambda: frames("/sync", deep)),
        flood.repeat(lambda: frames(mesh, deep)),
    )


async def bodies_without_token(flood: Flood) -> None:
    """Bodies of 380 kB from somebody who has shown nothing."""
    body = b'{"events":"' + b"x" * 380_000 + b'"}'
    paths = ("/sync/v1/submit", f"/apps/{flood.reach.app_id}/events")
    requests = [flood.post_bytes(path, body) for path in paths]
    await _side_by_side(
        *(flood.repeat(lambda r=request: flood.posts(lambda: r)) for request in requests * 4)  # type: ignore[misc]
    )


async def slow_loris(flood: Flood) -> None:
    """Many connections that never come to the end of a head or of a body."""
    head = b"GET /healthz HTTP/1.1\r\nHost: bench\r\nX-Slow: "
    body = b"POST /sync/v1/submit HTTP/1.1\r\nHost: bench\r\nContent-Length: 50000\r\n\r\n"

    async def dribble(start: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", flood.reach.port)
        try:
            writer.write(start)
            flood.answers["connections"] += 1
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.5)
                await flood.turn()
        finally:
            writer.transport.abort()

    starts = [head, body] * 75
    await _side_by_side(*(flood.repeat(lambda s=start: dribble(s)) for start in starts))  # type: ignore[misc]


async def large_frames(flood: Flood) -> None:
    """A sync client that submits events of 1 MB, five a second."""
    numbers = count()
    text = "x" * 1_000_000

    def message(kind: str, fields: dict[str, Any]) -> str:
        common = {"msg_id": "m", "timestamp": 0, "protocol_version": "1.0"}
        return encode({"type": kind, "payload": fields, **common}).decode()

    async def submits() -> None:
        async with flood.socket("/sync") as connection:
            token = flood.reach.sync_token
            hello = {"token": token, "client_id": FLOODER, "supported_profiles": [CANONICAL]}
            await connection.send(message("connect", hello))
            await connection.recv()
            while True:
                number = next(numbers)
                data = {"number": number, "text": text}
                event = {"type": "event", "payload": {"schema": SCHEMA, "data": data}}
                item = {"id": secrets.token_hex(8), "partitions": ["flood"], "event": event}
                await flood.turn()
                await connection.send(message("submit_events", {"events": [item]}))
                answer = json.loads(await asyncio.wait_for(connection.recv(), 30))
                flood.answers[answer["type"]] += 1
                await asyncio.sleep(0.2)

    await flood.repeat(submits)


async def large_history(flood: Flood) -> None:
    """Pages and single rows of a large channel, signed, and rewinds of anybody."""
    reach = flood.reach
    path = f"/apps/{reach.app_id}/channels/{reach.channel}/history"
    places = count()

    def read() -> bytes:
        number = next(places)
        start = 1 + number * 7919 % reach.messages
        question = ("limit=1", "limit=100", f"limit=100&start_serial={start}")[number % 3]
        return signed_get(path, question)

    async def rewinds() -> None:
        async with flood.socket(f"/app/{reach.app_key}?protocol=2") as connection:
            fields = {"channel": reach.channel}
            while True:
                await flood.turn()
                subscribe = {"event": "sockudo:subscribe", "data": {**fields, "rewind": 100}}
                await connection.send(encode(subscribe).decode())
                while b"rewind_complete" not in await asyncio.wait_for(
                    connection.recv(decode=False), 30
                ):
                    pass
                await connection.send(
                    encode({"event": "sockudo:unsubscribe", "data": fields}).decode()
                )
                flood.answers["rewinds"] += 1

    await _side_by_side(
        *(flood.repeat(lambda: flood.posts(read)) for _ in range(10)),
        *(flood.repeat(rewinds) for _ in range(10)),
    )


async def https_webhooks(flood: Flood, *, closes: bool = False) -> None:
    """A member of a mesh whose messages go to https endpoints; the endpoints are here too.

    They keep their connections as web servers do, or close each one after its answer, unannounced.
    """
    reach, posted = flood.reach, asyncio.Event()
    waiting = 0

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        flood.answers["connections"] += 1
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                await reader.readexactly(size)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
                flood.answers["posted"] += 1
                waiting -= 1
                posted.set()
                if closes:
                    break
        writer.transport.abort()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(reach.hooks_certificate)

    async def sends() -> None:
        nonlocal waiting
        async with flood.socket(f"/mesh/{reach.hooks_slug}/ws") as connection:
            await flood.member(connection, reach.hooks_slug, reach.hooks_seed)
            for ref in count(1):
                while waiting > 2 * ENDPOINTS:
                    posted.clear()
                    await posted.wait()
                await flood.turn()
                await connection.send(send_text(ref, TOPIC))
                waiting += ENDPOINTS
                while f'"ref":{ref}'.encode() not in await connection.recv(decode=False):
                    pass

    async with await asyncio.start_server(endpoint, "127.0.0.1", reach.hooks_port, ssl=tls):
        try:
            await flood.repeat(sends)
        finally:  # what was sent is still to be posted, or it would be tried again for hours
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while waiting > 0:
                        posted.clear()
                        await posted.wait()


async def member_at_full_speed(flood: Flood) -> None:
    """A member of the same mesh that sends without a pause, 64 under way."""
    reach = flood.reach

    async def sends() -> None:
        async with flood.socket(f"/mesh/{reach.slug}/ws") as connection:
            await flood.member(connection, reach.slug, reach.member_seed)
            refs, room = count(1), asyncio.Semaphore(64)

            async def write() -> None:
                while True:
                    await room.acquire()
                    await flood.turn()
                    await connection.send(send_text(next(refs), reach.topic))

            writing = asyncio.create_task(write())
            try:
                while True:
                    answer = json.loads(await connection.recv())
                    if "code" in answer:
                        flood.answers[str(answer["code"])] += 1
                        room.release()
            finally:
                writing.cancel()

    await flood.repeat(sends)


FLOODS: dict[str, tuple[Callable[[Flood], Awaitable[None]], int]] = {
    "only_cpu": (only_cpu, 2),
    "bad_joins": (bad_joins, 2),
    "deep_json": (deep_json, 2),
    "bodies_without_token": (bodies_without_token, 2),
    "slow_loris": (slow_loris, 2),
    "large_frames": (large_frames, 1),
    "large_history": (large_history, 2),
    "https_webhooks": (https_webhooks, 1),
    "https_webhooks_that_close": (functools.partial(https_webhooks, closes=True), 1),
    "member_at_full_speed": (member_at_full_speed, 1),
}
"""By name: what it does, and in how many processes."""


async def _side_by_side(*all_: Awaitable[None]) -> None:
    await asyncio.gather(*all_)


async def obey(name: str) -> None:
    """Go and stop as the lines of the standard input say."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    reach = msgspec.json.decode(await lines.readline(), type=Reach)
    action, _ = FLOODS[name]
    print("ready", flush=True)
    while await lines.readline() == b"go\n":
        flood = Flood(reach)
        going = asyncio.ensure_future(action(flood))
        await lines.readline()
        told = flood.told()
        if going.done():
            going.result()
        going.cancel()
        await asyncio.wait([going], timeout=2 * DRAIN_SECONDS)
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    asyncio.run(obey(sys.argv[1]))
