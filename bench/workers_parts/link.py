"""What the link itself costs each of its sides: a question, its answer, and the entry it appended.

The messages are those of an append. Nothing is decided, stored or delivered: what the two processes
use is the link, over a Unix socket as between an owner and its fronts, and `direct` is the same in
one process without it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

import channels
from tidelog.channels.messages import VOCABULARY, Entries, Entry, Mutate, Mutated
from tidelog.channels.protocol.requests import Mutation, MutationResult, Patch
from tidelog.link.direct import connect_directly
from tidelog.link.ends import FrontEnd, OwnerEnd, Send
from tidelog.link.unix import Served, front_link, owner_link

SERIAL = "00000001763400000000:01jcxexampleexampleexampl:00000000000000000042"
BODY = json.dumps({"data": "000001-000042 token", "name": "token", "padding": "x" * 60}).encode()

QUESTION = Mutate(
    "bench",
    Mutation(
        verb="append",
        channel="stream-17",
        message_serial=SERIAL,
        patch=Patch(data=b'"000001-000042 token"'),
        data_bytes=19,
    ),
)
ANSWER = Mutated(MutationResult(SERIAL, 42, 4711), 123_456)
ENTRY = Entry(123_456, 1_763_400_000_000, "bench/stream-17", 4711, "append", SERIAL, BODY)


class Half:
    """An owner's half that agrees with everything at once."""

    def accept(self, send: Send) -> "_Front":
        """See `OwnerHalf.accept`."""
        return _Front(send)


class _Front(OwnerEnd):
    def received(self, number: int, message: Any) -> None:
        """See `AtOwner.received`."""
        del message
        self.send(number, ANSWER)
        self.tell(Entries(ENTRY.committed_id, [ENTRY]))

    def lost(self) -> None:
        """See `AtOwner.lost`; whoever measures kills this process."""


async def _ask(end: FrontEnd, requests: int, window: int) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asked = heard = 0

    def ask() -> None:
        nonlocal asked
        if asked < requests:
            asked += 1
            end.ask(QUESTION, lambda _: ask_soon())

    def hear(entries: Entries) -> None:
        nonlocal heard
        heard += len(entries.entries)
        if heard == requests:
            done.set_result(None)

    loop = asyncio.get_running_loop()

    def ask_soon() -> None:
        loop.call_soon(ask)  # as a client would: not from within what brought the answer

    end.hear = hear
    for _ in range(window):
        ask()
    await done


async def _over_socket(path: str, owner: int, requests: int, window: int) -> dict[str, float]:
    link, [end] = front_link([VOCABULARY], lambda: None)
    loop = asyncio.get_running_loop()
    while True:
        try:
            await loop.create_unix_connection(lambda: link, path)
            break
        except (FileNotFoundError, ConnectionError):
            await asyncio.sleep(0.05)
    await _ask(end, requests // 10, window)
    before, own = channels.cpu_seconds(owner), time.process_time()
    await _ask(end, requests, window)
    own, theirs = time.process_time() - own, channels.cpu_seconds(owner) - before
    return {
        "front_us": round(own / requests * 1e6, 2),
        "owner_us": round(theirs / requests * 1e6, 2),
    }


async def _directly(requests: int, window: int) -> dict[str, float]:
    end = connect_directly(Half())
    own = time.process_time()
    await _ask(end, requests, window)
    return {"both_us": round((time.process_time() - own) / requests * 1e6, 2)}


def measure_link(requests: int) -> dict[str, Any]:
    """CPU of each side for one request, by how many are under way."""
    document: dict[str, Any] = {"requests": requests}
    for window in (1, 8, 64):
        with tempfile.TemporaryDirectory(prefix="tidelog-link-") as directory:
            path = str(Path(directory) / "owner.sock")
            variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
            owner = subprocess.Popen([sys.executable, __file__, path], env=variables)
            try:
                measured = uvloop.run(_over_socket(path, owner.pid, requests, window))
            finally:
                owner.kill()
                owner.wait()
        document[f"{window}_under_way"] = {
            **measured,
            "direct": uvloop.run(_directly(requests, window)),
        }
    return document


async def _own(path: str) -> None:
    served = [Served(Half(), VOCABULARY)]
    await asyncio.get_running_loop().create_unix_server(lambda: owner_link(served), path)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_own(sys.argv[1]))
