"""The longest turn of the event loop that one legal message of a client takes, by its shape.

A server with channels and sync runs in a thread of its own on asyncio's own loop; every callback of
that loop is measured by the processor time of its thread, so that a busy machine changes little.
Each shape is as large as the surface takes it: a megabyte on sync, `--body-mb` in a signed request
to channels, and has at most `--values` JSON values: just below the limit, or far beyond it to see
what refusing costs. What mesh reads of a frame is measured without a socket. Prints one JSON
document: milliseconds of the longest turn, and what the server said.

Example: python bench/longest_turn.py --only floats --values 1000000
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import httpx
import jwt
from websockets.asyncio.client import connect

from tidelog.base.errors import TidelogError
from tidelog.channels.settings import App
from tidelog.channels.surface import ChannelsSurface
from tidelog.config.settings import Settings
from tidelog.mesh.protocol.fingerprint import RequestRefused, read_envelope
from tidelog.mesh.protocol.wire import SendRequest, max_frame_bytes, read_daemon_frame
from tidelog.serve.server import Node, Server
from tidelog.sync.settings import SyncSettings
from tidelog.sync.surface import SyncSurface
from tidelog.testing.server import running_server

SECRET = "a secret of at least thirty-two bytes"
APP = App(id="bench", key="bench-key", secret=SECRET)
MODEL = {
    "model_version": 1,
    "tree_targets": {"t": {"kind": "tree", "actions": ["treePush"]}},
    "schemas": {"any": True},
}
SYNC_BYTES = 1_048_576 - 1024
VALUES = 99_900
"""Just below the limit; `--values` replaces it."""
ROUNDS = 2

Shape = Callable[[int, int], str]
"""Takes how many bytes and how many JSON values it may have; returns the text of one value."""


def repeated(part: str, values: int = 1) -> Shape:
    """As many of a part as there is room for, in an array; `values`: in each of them."""

    def shape(size: int, most_values: int) -> str:
        count = min((size - 2) // (len(part) + 1), most_values // values)
        return "[" + ",".join([part] * count) + "]"

    return shape


def keys(letter: str) -> Shape:
    """An object with many members."""

    def shape(size: int, most_values: int) -> str:
        length = len(f'"{letter}000000":1,'.encode())
        count = min((size - 2) // length, most_values)
        return "{" + ",".join(f'"{letter}{n:06}":1' for n in range(count)) + "}"

    return shape


SHAPES: dict[str, Shape] = {
    "text": lambda size, _: '"' + "a" * (size - 2) + '"',
    "text_of_commas": lambda size, _: '"' + "," * (size - 2) + '"',
    "integers": repeated("1"),
    "floats": repeated("1.5"),
    "whole_floats": repeated("1.0"),
    "small_floats": repeated("1e-5"),
    "texts": repeated('""'),
    "empty_arrays": repeated("[]"),
    "empty_objects": repeated("{}"),
    "arrays_40_deep": repeated("[" * 40 + "]" * 40, values=40),
    "objects_40_deep": repeated('{"a":' * 40 + "1" + "}" * 40, values=41),
    "keys": keys("k"),
    "keys_of_latin_letters": keys("é"),
    "keys_of_emoji": keys("😀"),
    "large_integers": repeated("9" * 4000),
}


class Turns:
    """How long the turns of a loop took that runs in another thread."""

    def __init__(self) -> None:
        self.thread = 0
        self.longest_ms = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure every callback of asyncio for the length of the block."""
        run = asyncio.Handle._run  # noqa: SLF001 - there is no public hook

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != self.thread:
                run(handle)
                return
            began = time.thread_time()
            run(handle)
            self.longest_ms = max(self.longest_ms, 1000 * (time.thread_time() - began))

        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield


async def serve(data_dir: Path, turns: Turns, ready: threading.Event, told: dict[str, Any]) -> None:
    """Serve until told to stop."""
    model_file = data_dir / "model.json"
    model_file.write_text(json.dumps(MODEL), encoding="utf-8")
    settings = Settings(
        apps=[APP], sync=SyncSettings(jwt_secret=SECRET, model_file=str(model_file))
    )

    async def channels(node: Node) -> ChannelsSurface:
        return await ChannelsSurface.open(node.committer, node.store, node.settings, node.clock)

    async def sync(node: Node) -> SyncSurface:
        return await SyncSurface.open(node.committer, node.store, node.settings, node.clock)

    server: Server
    async with running_server(data_dir, settings=settings, mounts=(channels, sync)) as server:
        turns.thread = threading.get_ident()
        stop = asyncio.Event()
        told |= {"url": server.url, "stop": stop, "loop": asyncio.get_running_loop()}
        ready.set()
        await stop.wait()


def token(client_id: str) -> str:
    """What opens everything in sync."""
    claims = {"client_id": client_id, "exp": int(time.time()) + 3600}
    return jwt.encode({**claims, "allowed_partition_prefixes": [""]}, SECRET, "HS256")


def message(kind: str, payload: str) -> str:
    """A message of sync's own protocol around the text of a payload."""
    head = f'"type":"{kind}","msg_id":"m","timestamp":1,"protocol_version":"1.0"'
    return f'{{{head},"payload":{payload}}}'


def insieme(kind: str, payload: str) -> str:
    """A message of insieme's dialect."""
    return f'{{"type":"{kind}","protocolVersion":"1.0","msgId":"m","payload":{payload}}}'


async def exchange(url: str, frames: list[str]) -> list[str]:
    """Send each frame when the one before has its reply; what the server said to the last."""
    async with connect(
        url.replace("http", "ws") + "/sync", compression=None, max_size=None
    ) as socket:
        reply: dict[str, Any] = {}
        for frame in frames:
            await socket.send(frame)
            reply = json.loads(await asyncio.wait_for(socket.recv(), 120))
    payload = reply["payload"]
    return [reply["type"], payload.get("message") or payload["results"][0]["status"]]


async def sync_events(url: str, shape: Shape, name: str) -> list[str]:
    """One event of the event profile."""
    profile = '"supported_profiles":["canonical"]'
    hello = f'{{"token":"{token(name)}","client_id":"{name}",{profile}}}'
    data = shape(SYNC_BYTES, VALUES)
    event = f'{{"type":"event","payload":{{"schema":"any","data":{data}}}}}'
    item = f'{{"id":"{name}","partitions":["p"],"event":{event}}}'
    submit = message("submit_events", f'{{"events":[{item}]}}')
    return await exchange(url, [message("connect", hello), submit])


async def sync_tree(url: str, shape: Shape, name: str) -> list[str]:
    """One event of the tree profile; a tree of a partition is kept in memory."""
    hello = f'{{"token":"{token(name)}","client_id":"{name}"}}'
    value = f'{{"id":"{name}","data":{shape(SYNC_BYTES, VALUES)}}}'
    event = f'{{"type":"treePush","payload":{{"target":"t","value":{value}}}}}'
    item = f'{{"id":"{name}","partitions":["tree"],"event":{event}}}'
    submit = message("submit_events", f'{{"events":[{item}]}}')
    return await exchange(url, [message("connect", hello), submit])


async def sync_insieme(url: str, shape: Shape, name: str) -> list[str]:
    """One event of the other dialect."""
    hello = f'{{"token":"{token(name)}","clientId":"{name}","projectId":"q"}}'
    item = (
        f'{{"id":"{name}","partition":"p","projectId":"q","type":"any","schemaVersion":1,'
        f'"meta":{{"clientTs":1}},"payload":{{"data":{shape(SYNC_BYTES, VALUES)}}}}}'
    )
    submit = insieme("submit_events", f'{{"events":[{item}]}}')
    return await exchange(url, [insieme("connect", hello), submit])


async def sync_ignored(url: str, shape: Shape, name: str) -> list[str]:
    """A member that nobody asked for, before it is known who sends it: 64 KiB at most."""
    hello = f'{{"token":{shape(64_000, VALUES)},"client_id":1}}'
    return await exchange(url, [message("connect", hello)])


def channels_body(body_bytes: int) -> Callable[[str, Shape, str], Any]:
    """A signed publish; its data is larger than the server takes, which it finds out last."""

    async def publish(url: str, shape: Shape, name: str) -> list[str]:
        body = f'{{"name":"{name}","channel":"room","data":{shape(body_bytes, VALUES)}}}'.encode()
        path = f"/apps/{APP.id}/events"
        query = {
            "auth_key": APP.key,
            "auth_timestamp": str(int(time.time())),
            "auth_version": "1.0",
            "body_md5": hashlib.md5(body, usedforsecurity=False).hexdigest(),
        }
        signed = f"POST\n{path}\n{urlencode(query)}"
        query["auth_signature"] = hmac.digest(SECRET.encode(), signed.encode(), "sha256").hex()
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            response = await client.post(path, params=query, content=body)
        return [str(response.status_code), response.json().get("error", "")]

    return publish


def mesh_frame(shape: Shape) -> tuple[float, list[str]]:
    """What a broker does with a send before it decides."""
    size = max_frame_bytes(65_536) - 1024
    envelope = '"envelope_version":1,"destination_kind":"topic","destination_ref":"t","body":"b"'
    frame = f'{{"type":"send","ref":1,{envelope},"meta":{{"data":{shape(size, VALUES)}}}}}'.encode()
    began = time.thread_time()
    said = ["taken"]
    try:
        request = read_daemon_frame(frame)
        if isinstance(request, SendRequest) and request.fault is None:
            read_envelope(request.fields)
    except (TidelogError, RequestRefused) as error:
        said = ["refused", str(error)[:100]]
    return 1000 * (time.thread_time() - began), said


async def measure(
    url: str, turns: Turns, arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """The longest of the shortest: the best of some rounds for each surface and shape."""
    surfaces = {
        "sync_events": sync_events,
        "sync_tree": sync_tree,
        "sync_insieme": sync_insieme,
        "sync_before_the_token": sync_ignored,
        "channels_publish": channels_body(int(arguments.body_mb * 1_000_000)),
    }
    figures: dict[str, dict[str, Any]] = {}
    for name, shape in SHAPES.items():
        if arguments.only and name not in arguments.only:
            continue
        for surface, attempt in surfaces.items():
            found, said = [], [""]
            sys.stderr.write(f"{surface}: {name}\n")
            for number in range(ROUNDS):
                turns.longest_ms = 0.0
                said = await attempt(url, shape, f"{surface}-{name}-{number}")
                await asyncio.sleep(0.1)  # what follows the reply: delivery, state
                found.append(turns.longest_ms)
            figures.setdefault(surface, {})[name] = {"ms": round(min(found), 1), "said": said}
        ms, said = min((mesh_frame(shape) for _ in range(ROUNDS)), key=lambda each: each[0])
        figures.setdefault("mesh_frame", {})[name] = {"ms": round(ms, 1), "said": said}
    return figures


def main() -> None:
    """Print the document."""
    global VALUES  # noqa: PLW0603 - one for the whole run
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=SHAPES)
    parser.add_argument("--body-mb", type=float, default=1.0)
    parser.add_argument("--values", type=int, default=VALUES)
    arguments = parser.parse_args()
    VALUES = arguments.values
    turns, ready, told = Turns(), threading.Event(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as directory, turns.measured():
        serving = threading.Thread(
            target=lambda: asyncio.run(serve(Path(directory), turns, ready, told))
        )
        serving.start()
        ready.wait()
        try:
            figures = asyncio.run(measure(told["url"], turns, arguments))
        finally:
            told["loop"].call_soon_threadsafe(told["stop"].set)
            serving.join()
    longest = {
        surface: max(figure["ms"] for figure in shapes.values())
        for surface, shapes in figures.items()
    }
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    print(json.dumps({"longest_ms": longest, "by_shape": figures, "machine": machine}, indent=1))


if __name__ == "__main__":
    main()
