"""Clients of the mesh that go on while processes of its server die, and what ends them all."""

import asyncio
import contextlib
from collections.abc import Callable

import httpx
from websockets.exceptions import WebSocketException

from support.mesh.peer import Json, Member, Wire, envelope

WAIT_SECONDS = 120.0
LOST = (OSError, EOFError, WebSocketException, httpx.TransportError)


async def acknowledge(wire: Wire, delivered: Json) -> None:
    """Say that a message has arrived."""
    names = ("broker_message_id", "client_message_id", "claim_id")
    await wire.send({"type": "client_ack", **{name: delivered[name] for name in names}})


async def send(ana: Member, ben: Member, kept: list[str], enough: asyncio.Event) -> None:
    """Send to a member of a mesh, each message under its id until it is accepted."""
    while not enough.is_set():
        message = f"dm-{len(kept)}"
        with contextlib.suppress(*LOST):
            answer = await ana.post(message, envelope("dm", ben.address, message))
            if answer.status_code in (200, 201):
                kept.append(message)
            else:
                assert answer.status_code == 503, answer.text


async def receive(ben: Member, got: set[str]) -> None:
    """Take what comes for a member, on one connection after the other."""
    while True:
        with contextlib.suppress(*LOST):
            async with Wire.open(ben) as wire:
                await wire.hello()
                await wire.negotiate()
                while True:
                    delivered = await wire.until("deliver")
                    got.add(delivered["client_message_id"])
                    await acknowledge(wire, delivered)


async def until(is_so: Callable[[], bool]) -> None:
    """Return when it is."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_so():  # noqa: ASYNC110 - other processes have no event
            await asyncio.sleep(0.02)
