"""Processes of one port: each takes one connection at a time."""

import asyncio
import errno
import socket
from contextlib import ExitStack

import pytest

from tidelog.web import accepting
from tidelog.web.accepting import Acceptor

WAITING = 20


async def test_those_that_wait_are_shared() -> None:
    """Also if all come before anybody looks; nobody takes them all."""
    with ExitStack() as kept:
        listener = kept.enter_context(socket.create_server(("127.0.0.1", 0), backlog=WAITING))
        listener.setblocking(False)
        for _ in range(WAITING):
            kept.enter_context(socket.create_connection(listener.getsockname()))
        taken: list[list[str]] = [[], []]
        acceptors = [Acceptor(at_once=1) for _ in taken]
        for acceptor, mine in zip(acceptors, taken, strict=True):

            def admit(peer: socket.socket, address: str, mine: list[str] = mine) -> None:
                kept.enter_context(peer)
                mine.append(address)

            acceptor.start(kept.enter_context(listener.dup()), admit)
        async with asyncio.timeout(60):
            while sum(map(len, taken)) < WAITING:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
        for acceptor in acceptors:
            acceptor.close()
    assert [len(mine) for mine in taken] == [WAITING // 2] * 2
    assert {address for mine in taken for address in mine} == {"127.0.0.1"}


async def test_who_has_ended_accepts_no_more_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had too many files open, and was told to end before it looked again."""
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    looked = asyncio.Event()
    again: list[bool] = []

    class Full(socket.socket):
        """A port of a process that can have no more files."""

        def accept(self) -> tuple[socket.socket, object]:
            again.append(looked.is_set())
            looked.set()
            loop.call_soon(acceptor.close)  # before the pause is over
            raise OSError(errno.EMFILE, "too many open files")

    with Full() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        acceptor = Acceptor(at_once=1)
        acceptor.start(listener, lambda peer, address: pytest.fail(f"{peer} of {address}"))
        with socket.create_connection(listener.getsockname()):
            await looked.wait()
            await asyncio.sleep(0.02)
        acceptor.close()
    assert again == [False]
