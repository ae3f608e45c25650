"""A duplicate storm against real processes: 64 callers, one id, two payloads (FT-14 to FT-16)."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.mesh import mesh_cases
from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.caller import Caller, topic_send
from support.mesh.daemon_process import DaemonProcess, eventually
from tidelog.mesh.protocol.fingerprint import make_envelope

CALLERS = 64
RIVALS = 4
"""Callers of the broker that are another member with the same id."""
ROUNDS = int(os.environ.get("TIDELOG_TEST_STORM_ROUNDS") or 30)
"""Of all storms together; `scripts/soak` has more."""
SHARES = {"sqlite": 0.6, "postgresql": 0.1, "ipc": 0.3}
"""Of the rounds: a storm at the broker on either engine, and one at the IPC."""
NO_TOPIC_EVERY = 10
"""Every so many rounds at the IPC are to a topic that does not exist, so that their row dies."""
WAIT_SECONDS = 120.0 + ROUNDS / 5
PAYLOADS = ("one", "other")
LIFTED = "[ipc]\nrate_per_second = 1000000\nrate_burst = 1000000\n"

Json = dict[str, Any]


def prefix_of(body: str, topic: str = TOPIC) -> str:
    """The beginning of a send's fingerprint, as answers have it."""
    return fingerprint(body, topic)[:16]


@cache
def fingerprint(body: str, topic: str = TOPIC) -> str:
    """The fingerprint of a send."""
    envelope = make_envelope(destination_kind="topic", destination_ref=topic, body=body.encode())
    return envelope.fingerprint().hex()


class Party(NamedTuple):
    """A caller of the broker, whose it is, and the payload its sends have."""

    caller: Caller
    owner: str
    body: str

    async def send(self, client_id: str, delay: float) -> Json:
        """Send the payload under an id; returns what the acknowledgement says."""
        ack = await self.caller.send(client_id, topic_send(self.body), delay)
        return {name: value for name, value in ack.items() if name not in ("type", "ref")}


def check_round(client_id: str, callers: Sequence[Party], acks: Sequence[Json]) -> Json:
    """Every answer is the one of mesh 6.2; returns that of the first accept."""
    [(winner, first)] = [
        (caller, ack) for caller, ack in zip(callers, acks, strict=True) if ack["code"] == 201
    ]
    named = {key: first[key] for key in ("broker_message_id", "history_id")}
    assert first == {"code": 201, "client_message_id": client_id, "duplicate": False, **named}
    first_seen = {ack.get("first_seen_at") for ack in acks if ack["code"] == 200}
    assert len(first_seen) == 1
    for caller, ack in zip(callers, acks, strict=True):
        if caller is winner:
            continue
        if (caller.owner, caller.body) == (winner.owner, winner.body):
            expected = {
                **first,
                "code": 200,
                "duplicate": True,
                "history_available": True,
                "first_seen_at": next(iter(first_seen)),
                "destination_kind": "topic",
                "destination_ref": TOPIC,
            }
        else:
            is_rival = caller.owner != winner.owner
            expected = {
                "code": 409,
                "error": "idempotency_key_reused",
                "client_message_id": client_id,
                "conflict": "sender_mismatch" if is_rival else "request_fingerprint_mismatch",
                "broker_fingerprint_prefix": prefix_of(caller.body),
            }
        assert ack == expected
    return {**named, "body": winner.body}


async def storm_at_broker(mesh: RealMesh, rounds: int) -> dict[str, Json]:
    """All rounds; returns what won in each."""
    keys = {owner: await asyncio.to_thread(mesh.member, owner) for owner in ("ada", "ben")}
    owners = ["ben" if number < RIVALS else "ada" for number in range(CALLERS)]
    dice = random.Random(64)
    won: dict[str, Json] = {}
    async with AsyncExitStack() as stack, asyncio.timeout(WAIT_SECONDS):
        callers = []
        for number, owner in enumerate(owners):
            caller = await Caller.open(mesh, keys[owner])
            stack.push_async_callback(caller.close)
            callers.append(Party(caller, owner, PAYLOADS[number % 2]))
        for number in range(rounds):
            client_id = f"storm-{number}"
            dice.shuffle(callers)
            delays = [dice.choice((0, 0, 0, dice.random() / 200)) for _ in callers]
            acks = await asyncio.gather(
                *(
                    caller.send(client_id, delay)
                    for caller, delay in zip(callers, delays, strict=True)
                )
            )
            won[client_id] = check_round(client_id, callers, acks)
    return won


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
def test_a_storm_at_the_broker(engine: str, store_location: str, tmp_path: Path) -> None:
    """Each id has one message, that of the one 201; every other answer is the table's."""
    policy = "allow_concurrent"
    with RealMesh(tmp_path / "broker", store_location, clone_concurrency_policy=policy) as mesh:
        won = asyncio.run(storm_at_broker(mesh, round(ROUNDS * SHARES[engine])))
        assert mesh.messages() == dict.fromkeys(won, 1)
        assert mesh.ids() == {key: first["broker_message_id"] for key, first in won.items()}
        stored = mesh.rows("SELECT client_message_id, body FROM {topic_message}")
        assert {key: bytes(body).decode() for key, body in stored} == {
            key: first["body"] for key, first in won.items()
        }
        places = [first["history_id"] for first in won.values()]
        assert places == list(range(1, len(won) + 1))
        assert mesh.findings() == []


class Answer(NamedTuple):
    """What the IPC said to a send."""

    message: str
    status: int
    body: Json


class IpcCaller:
    """A keep-alive connection to a daemon's Unix socket, with the payload its sends have."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._message = message

    @classmethod
    @asynccontextmanager
    async def open(cls, daemon: DaemonProcess, message: str) -> "AsyncIterator[IpcCaller]":
        """An open connection."""
        reader, writer = await asyncio.open_unix_connection(daemon.data_dir / "daemon.sock")
        try:
            yield cls(reader, writer, message)
        finally:
            writer.close()
            await writer.wait_closed()

    async def send(self, topic: str, client_id: str, delay: float) -> Answer:
        """`POST /v1/send`."""
        if delay:
            await asyncio.sleep(delay)
        fields = {"to": f"topic:{topic}", "message": self._message, "client_message_id": client_id}
        body = json.dumps(fields).encode()
        self._writer.write(
            b"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        answer = json.loads(await self._reader.readexactly(size))
        return Answer(self._message, int(head.split(" ")[1]), answer)


async def storm_at_ipc(
    daemon: DaemonProcess, rounds: Sequence[int]
) -> dict[str, tuple[str, list[Answer]]]:
    """These rounds; returns the topic and the answers of each id."""
    dice = random.Random(46)
    found: dict[str, tuple[str, list[Answer]]] = {}
    async with AsyncExitStack() as stack, asyncio.timeout(WAIT_SECONDS):
        callers = [
            await stack.enter_async_context(IpcCaller.open(daemon, PAYLOADS[number % 2]))
            for number in range(CALLERS)
        ]
        for number in rounds:
            topic = TOPIC if number % NO_TOPIC_EVERY else "nowhere"
            dice.shuffle(callers)
            delays = [dice.choice((0, dice.random() / 50)) for _ in callers]
            answers = await asyncio.gather(
                *(
                    caller.send(topic, f"storm-{number}", delay)
                    for caller, delay in zip(callers, delays, strict=True)
                )
            )
            found[f"storm-{number}"] = (topic, answers)
    return found


def table(row: Json, message: str, topic: str, *states: str) -> list[tuple[int, Json]]:
    """Every answer that the cases of `ipc_lookup` have for this message in these states."""
    is_match = row["request_fingerprint"].hex() == fingerprint(message, topic)
    meant = {
        "<id>": row["client_message_id"],
        "<req.fp16>": prefix_of(message, topic),
        "<row.fp16>": row["request_fingerprint"].hex()[:16],
        "<row.broker_message_id>": row["broker_message_id"],
        "<row.history_id>": row["history_id"],
        "<row.last_error>": row["last_error"],
    }
    return [
        (
            case["status"],
            {
                key: meant.get(value, value) if isinstance(value, str) else value
                for key, value in case["body"].items()
            },
        )
        for case in mesh_cases.cases("ipc_lookup")
        if case["state"] in states and case["match"] != ("mismatch" if is_match else "match")
        if is_match or case["state"] != "no_row"
    ]


def test_a_storm_at_the_ipc(tmp_path: Path) -> None:
    """Each id has one row and at most one message; every answer is the table's, of a state it had.

    The rows are sent while the storm blows, so that callers meet them on the way; some of the ids
    are stormed again when their rows have come to their end.
    """
    with (
        RealMesh(tmp_path / "broker") as mesh,
        mesh.daemon("ada", settings=LIFTED) as daemon,
    ):
        daemon.start()
        eventually(lambda: daemon.health()["connected"])
        rounds = range(round(ROUNDS * SHARES["ipc"]))
        found = asyncio.run(storm_at_ipc(daemon, rounds))
        eventually(lambda: set(daemon.statuses()) == {"done", "dead"})
        rows = daemon.rows()
        assert rows.keys() == found.keys()
        for client_id, (topic, answers) in found.items():
            row = rows[client_id]
            assert row["status"] == ("done" if topic == TOPIC else "dead")
            states = ("no_row", "pending", "inflight", row["status"])
            for answer in answers:
                assert (answer.status, answer.body) in table(row, answer.message, topic, *states)
        again = asyncio.run(storm_at_ipc(daemon, rounds[: NO_TOPIC_EVERY + 2]))
        for client_id, (topic, answers) in again.items():
            row = rows[client_id]
            for answer in answers:
                [expected] = table(row, answer.message, topic, row["status"])
                assert (answer.status, answer.body) == expected
        assert daemon.rows() == rows
        sent = [client_id for client_id, (topic, _) in found.items() if topic == TOPIC]
        assert mesh.messages() == dict.fromkeys(sent, 1)
        assert mesh.ids() == {key: rows[key]["broker_message_id"] for key in sent}
        assert mesh.findings() == []
