"""Many callers at once at a real daemon and at real brokers (FT-14 to FT-17).

On PostgreSQL two nodes share the store and the callers are spread over both. `scripts/soak` raises
the number of rounds; one failing round fails the case.
"""

import asyncio
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.caller import Caller, topic_send
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.invariants import check
from support.mesh.proxy import MeshProxy, proxied
from support.mesh.scripted_broker import ScriptedBroker, running
from tidelog.mesh.protocol.fingerprint import read_envelope
from tidelog.testing.postgresql import create_database, drop_database

ROUNDS = int(os.environ.get("TIDELOG_TEST_SOAK_ROUNDS", "4"))
COPIES = 50
CALLERS = 64
SPREAD_SECONDS = 0.004
"""Within which the callers of a round begin."""
WINDOW_MS = 4000
CONCURRENT = {"clone_concurrency_policy": "allow_concurrent"}
"""Of a mesh where one member has several connections."""
LIMITS = {"rate_limit": 10, "rate_window_ms": WINDOW_MS}
DAY_MS = 86_400_000
DESTINATION = f"topic:{TOPIC}"

NOT_A_CONTAINER = """
import sys
from tidelog.daemon import __main__, process
process._is_container = lambda settings: False
sys.exit(__main__.main())
"""
"""The daemon, which opens no TCP port where it finds itself in a container, as CI may be one."""

Json = dict[str, Any]


@pytest.fixture
def dice() -> random.Random:
    """The delays of this run; `scripts/soak` prints the seed."""
    return random.Random(int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "14")))


@pytest.fixture(scope="module", params=("sqlite", "postgresql"))
def mesh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealMesh]:
    """A broker for the tests of this module; each has a mesh of its own."""
    folder = tmp_path_factory.mktemp("races")
    if request.param == "sqlite":
        with RealMesh(folder / "broker") as mesh:
            yield mesh
        return
    server = request.getfixturevalue("postgresql_server")
    template = request.getfixturevalue("postgresql_template")
    url = asyncio.run(create_database(server, template=template))
    with RealMesh(folder / "broker", url) as mesh:
        yield mesh
    asyncio.run(drop_database(url))


@asynccontextmanager
async def connections(mesh: RealMesh, slug: str, count: int) -> AsyncIterator[list[Caller]]:
    """So many connections of one member of a mesh, over all nodes."""
    urls = await asyncio.to_thread(mesh.beside)
    key = await asyncio.to_thread(mesh.member, "carol", slug)
    callers = [
        await Caller.open(mesh, key, url=urls[number % len(urls)], slug=slug)
        for number in range(count)
    ]
    try:
        yield callers
    finally:
        await asyncio.gather(*(caller.close() for caller in callers))


async def test_ft_14_a_duplicate_storm_at_the_broker(mesh: RealMesh, dice: random.Random) -> None:
    """Fifty copies of each send at once: one 201, the same message for all others, one unit."""
    mesh.create("storm", rate_limit=ROUNDS, rate_window_ms=DAY_MS, **CONCURRENT)
    async with connections(mesh, "storm", COPIES) as callers:
        for number in range(ROUNDS):
            fields = topic_send(f"round {number}")
            answers = await asyncio.gather(
                *(
                    caller.send(f"storm-{number}", fields, dice.uniform(0, SPREAD_SECONDS))
                    for caller in callers
                )
            )
            codes = Counter(answer["code"] for answer in answers)
            assert codes == {201: 1, 200: COPIES - 1}, f"round {number}"
            assert len({answer["broker_message_id"] for answer in answers}) == 1
        over = await callers[0].send("storm-over", topic_send("over"))
        assert over["code"] == 429, "each round has cost one unit, and so all are used up"
    await asyncio.to_thread(check, mesh)
    stored = {key: count for key, count in mesh.messages().items() if key.startswith("storm-")}
    assert stored == {f"storm-{number}": 1 for number in range(ROUNDS)}
    assert mesh.used_units("storm") in (None, ROUNDS)
    for problem in ("40001", "40P01", "deadlock", "Traceback"):
        assert problem not in mesh.log_text()


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    """A daemon that listens on both transports, whose broker is away."""
    settings = "[ipc]\ntcp_port = 0\nrate_burst = 1000000\n"
    with running(ScriptedBroker()) as broker:
        broker.call(broker.stop)
        program = ("-c", NOT_A_CONTAINER)
        with DaemonProcess(broker.url, settings=settings, program=program) as daemon:
            daemon.start()
            yield daemon


class IpcConnection:
    """One connection to a daemon's IPC, kept alive, whose requests are written in two pieces."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""

    @classmethod
    async def open(cls, daemon: DaemonProcess, *, is_tcp: bool) -> "IpcConnection":
        """Over TCP, or over the Unix socket."""
        if is_tcp:
            port = daemon.ready["tcp_port"]
            connection = cls(*await asyncio.open_connection("127.0.0.1", port))
        else:
            path = str(daemon.data_dir / "daemon.sock")
            connection = cls(*await asyncio.open_unix_connection(path))
        connection._token = (daemon.data_dir / "token").read_text().strip()
        return connection

    _token = ""

    async def greet(self) -> None:
        """Ask something small: from then on the daemon has this connection, and reads from it."""
        head = f"GET /v1/version HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}"
        self._writer.write(f"{head}\r\n\r\n".encode())
        assert (await self.answer())[0] == 200

    def begin(self, client_id: str, text: str) -> None:
        """Write the head of a send and some of its body: it counts as under way."""
        body = json.dumps({"to": DESTINATION, "message": text}).encode()
        head = (
            f"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n"
            f"Idempotency-Key: {client_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body[:5])
        self._rest = body[5:]

    async def end(self, delay_seconds: float = 0.0) -> tuple[int, Json]:
        """Write the rest; returns status and body."""
        await asyncio.sleep(delay_seconds)
        self._writer.write(self._rest)
        return await self.answer()

    async def answer(self) -> tuple[int, Json]:
        """The next answer."""
        async with asyncio.timeout(60):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            body = await self._reader.readexactly(size)
        return int(head.split()[1]), json.loads(body)

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


async def test_ft_15_a_duplicate_storm_at_the_ipc(
    daemon: DaemonProcess, dice: random.Random
) -> None:
    """64 sends of one id over both transports: one row; a 65th request is refused without one."""
    callers = [await IpcConnection.open(daemon, is_tcp=bool(n % 2)) for n in range(CALLERS)]
    for caller in callers:
        await caller.greet()
    for number in range(ROUNDS):
        for caller in callers:
            caller.begin(f"r{number}", f"round {number}")
        busy = await refused(daemon, f"late{number}", is_tcp=bool(number % 2))
        assert busy["error"] == "daemon_busy"
        answers = await asyncio.gather(
            *(caller.end(dice.uniform(0, SPREAD_SECONDS)) for caller in callers)
        )
        assert {status for status, _ in answers} <= {200, 202}, f"round {number}: {answers}"
        daemon.answers += answers
    for caller in callers:
        caller.close()
    assert daemon.rows().keys() == {f"r{number}" for number in range(ROUNDS)}
    assert "locked" not in daemon.log_text()


async def refused(daemon: DaemonProcess, client_id: str, *, is_tcp: bool) -> Json:
    """Try with one more request until those before it are under way; returns its refusal."""
    async with asyncio.timeout(60):
        while True:
            extra = await IpcConnection.open(daemon, is_tcp=is_tcp)
            extra.begin(client_id, "late")
            try:
                async with asyncio.timeout(0.5):
                    status, body = await extra.answer()
            except TimeoutError:
                continue  # it was let in; its body never comes, so that it leaves no row
            finally:
                extra.close()
            assert status == 429
            return body


async def test_ft_16_two_bodies_of_one_id_at_the_ipc(
    daemon: DaemonProcess, dice: random.Random
) -> None:
    """In every round one body is stored and its caller told so, and the other one gets 409."""
    one = await IpcConnection.open(daemon, is_tcp=False)
    other = await IpcConnection.open(daemon, is_tcp=True)
    winners: dict[str, str] = {}
    for number in range(ROUNDS):
        texts = (f"x{number}", f"y{number}")
        for caller, text in zip((one, other), texts, strict=True):
            caller.begin(f"r{number}", text)
        answers = await asyncio.gather(
            *(caller.end(dice.choice((0, 0, SPREAD_SECONDS / 8))) for caller in (one, other))
        )
        assert sorted(status for status, _ in answers) == [202, 409], f"round {number}"
        winners[f"r{number}"] = texts[[status for status, _ in answers].index(202)]
    for message_id, row in daemon.rows().items():
        winner = topic_send(winners[message_id])
        assert row["request_fingerprint"].hex() == fingerprint(winner)
        assert winners[message_id].encode() in row["payload"]
    assert daemon.rows().keys() == winners.keys()
    one.close()
    other.close()


async def test_ft_16_two_bodies_of_one_id_at_the_broker(
    mesh: RealMesh, dice: random.Random
) -> None:
    """One wins and is what is stored; a claim without a destination never makes a 409 of it."""
    mesh.create("rivals", **CONCURRENT)
    async with connections(mesh, "rivals", 4) as callers:
        winners: dict[str, Json] = {}
        for number in range(ROUNDS):
            sends = [topic_send(f"x{number}"), topic_send(f"y{number}")]
            answers = await together(callers[:2], f"r{number}", sends, dice)
            codes = [answer["code"] for answer in answers]
            assert sorted(codes) == [201, 409], f"round {number}"
            winners[f"r{number}"] = sends[codes.index(201)]
            sends = [topic_send(f"x{number}"), topic_send("nowhere", topic="nowhere")]
            good, bad = await together(callers[2:], f"s{number}", sends, dice)
            assert good["code"] == 201, f"round {number}: {good}"
            assert bad["code"] in (404, 409)
            winners[f"s{number}"] = sends[0]
    stored = await asyncio.to_thread(
        mesh.rows,
        "SELECT m.client_message_id, m.body, d.request_fingerprint FROM {topic_message} m"
        " JOIN {client_message_dedupe} d ON d.broker_message_id = m.id"
        " JOIN {mesh} s ON s.id = m.mesh_id AND s.slug = 'rivals'",
    )
    assert {key for key, _, _ in stored} == winners.keys()
    for message_id, body, kept in stored:
        assert bytes(body).decode() == winners[message_id]["body"]
        assert bytes(kept).hex() == fingerprint(winners[message_id])
    await asyncio.to_thread(check, mesh)


async def together(
    callers: list[Caller], client_id: str, sends: list[Json], dice: random.Random
) -> list[Json]:
    """Each caller sends its own, at nearly the same time."""
    return await asyncio.gather(
        *(
            caller.send(client_id, fields, dice.choice((0, 0, SPREAD_SECONDS / 4)))
            for caller, fields in zip(callers, sends, strict=True)
        )
    )


def fingerprint(fields: Json) -> str:
    """What daemon and broker compute for a send."""
    return read_envelope(fields).fingerprint().hex()


async def window_begins() -> int:
    """Wait for the beginning of a window; returns its number."""
    await asyncio.sleep((WINDOW_MS - time.time() * 1000 % WINDOW_MS + 20) / 1000)
    return window()


def window() -> int:
    """The number of the limiter's window now."""
    return int(time.time() * 1000 // WINDOW_MS)


async def test_ft_17_retries_in_a_full_window(mesh: RealMesh, dice: random.Random) -> None:
    """A committed send is a duplicate in a full window, a new one is told when to come again.

    Every round is a mesh of its own, so that up to twenty share a window.
    """
    left = list(range(ROUNDS))
    callers = {}
    for number in left:
        slug = f"round-{number}"
        await asyncio.to_thread(mesh.create, slug, **LIMITS)
        key = await asyncio.to_thread(mesh.member, "carol", slug, is_followed=False)
        callers[number] = await Caller.open(mesh, key, slug=slug)
    while left:
        some = left[:20]
        begun = await window_begins()
        played = await asyncio.gather(
            *(full_window(callers[number], f"{begun}-{number}", dice) for number in some)
        )
        if window() == begun:  # on a machine that is too busy for one window: once more
            for codes in played:
                assert codes == EXPECTED, f"window {begun}"
            left = left[20:]
    await window_begins()
    for number, caller in callers.items():
        assert (await caller.send(f"next-{number}", topic_send("fresh")))["code"] == 201
        await caller.close()
    await asyncio.to_thread(check, mesh)


EXPECTED = {
    "first": Counter({201: 1}),
    "others": Counter({201: 9, 429: 6}),
    "retries": Counter({200: 5}),
    "fresh": Counter({429: 1}),
}
"""Answers of one round, with a limit of ten."""


async def full_window(caller: Caller, name: str, dice: random.Random) -> dict[str, Counter[int]]:
    """A send whose answer counts as lost, retried while others fill the window."""
    kept = topic_send("kept")
    first = await caller.send(f"kept-{name}", kept)
    others = [
        caller.send(f"other-{name}-{n}", topic_send("x"), dice.random() / 50) for n in range(15)
    ]
    retries = [caller.send(f"kept-{name}", kept, dice.random() / 25) for _ in range(5)]
    answers = await asyncio.gather(*others, *retries)
    fresh = await caller.send(f"fresh-{name}", topic_send("fresh"))
    assert fresh["code"] != 429 or 1 <= fresh["retry_after"] <= WINDOW_MS / 1000
    return {
        "first": Counter([first["code"]]),
        "others": Counter(answer["code"] for answer in answers[:15]),
        "retries": Counter(answer["code"] for answer in answers[15:]),
        "fresh": Counter([fresh["code"]]),
    }


async def test_ft_17_a_daemon_in_a_full_window(mesh: RealMesh) -> None:
    """A row whose answer was lost is done by its retry; a new one waits for the next window."""
    slug, settings = "full", "[uplink]\nrequest_timeout_ms = 400\n"
    mesh.create(slug, **LIMITS)
    with proxied(mesh.server.url) as proxy:
        alice = await asyncio.to_thread(
            mesh.daemon, "alice", slug=slug, settings=settings, broker_url=proxy.url
        )
        key = await asyncio.to_thread(mesh.member, "carol", slug)
        caller = await Caller.open(mesh, key, slug=slug)
        proxy.is_lost = lambda message_id: (
            message_id.startswith("kept") and len(proxy.answers[message_id]) == 1
        )
        with alice:
            await asyncio.to_thread(alice.start)
            await asyncio.to_thread(eventually, lambda: alice.health()["connected"])
            attempts = itertools.count()
            while not await lose_an_answer(alice, proxy, caller, name := str(next(attempts))):
                assert name != "4", "this machine is too busy for one window"
            kept, fresh = f"kept-{name}", f"fresh-{name}"
            first, *others = proxy.answers[kept]  # a busy machine may miss more than one answer
            assert (first, set(others)) == (201, {200})
            assert set(proxy.answers[fresh]) == {429}
            assert alice.rows()[fresh]["status"] == "pending"
            await asyncio.to_thread(check, mesh, alice)
            assert proxy.answers[fresh][-1] == 201
            assert alice.rows()[fresh]["attempts"] == len(proxy.answers[fresh])
            await caller.close()


async def lose_an_answer(alice: DaemonProcess, proxy: MeshProxy, caller: Caller, name: str) -> bool:
    """Lose an answer, fill the window, send a new one; False if that took longer than a window."""
    begun = await window_begins()
    kept, fresh = f"kept-{name}", f"fresh-{name}"
    await asyncio.to_thread(alice.send, DESTINATION, kept, kept)
    await asyncio.to_thread(eventually, lambda: proxy.answers[kept])
    await asyncio.gather(*(caller.send(f"fill-{name}-{n}", topic_send("x")) for n in range(9)))
    await asyncio.to_thread(alice.send, DESTINATION, fresh, fresh)
    await asyncio.to_thread(eventually, lambda: alice.rows()[kept]["status"] == "done", 20)
    await asyncio.to_thread(
        eventually, lambda: proxy.answers[fresh] and alice.rows()[fresh]["status"] != "inflight", 20
    )
    return window() == begun
