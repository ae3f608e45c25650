"""Whoever produces waits for who cannot take more, and gives up on who takes too long."""

import asyncio

import pytest

from tidelog.base import brake
from tidelog.base.brake import Brake


def nobody() -> None:
    """Is not given up."""
    raise AssertionError


async def test_nobody_waits_for_a_brake_that_nobody_holds() -> None:
    """Also not after it was held."""
    held = Brake()
    await held.released()
    held.hold(nobody)
    held.release(nobody)
    held.release(nobody)
    await held.released()


async def test_all_must_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often one of them takes hold again; who waits goes on in the end, and so do all."""
    monkeypatch.setattr(brake, "PATIENCE_SECONDS", 60.0)
    held = Brake()

    def other() -> None:
        raise AssertionError

    held.hold(nobody)
    held.hold(other)
    waiting = [asyncio.create_task(held.released()) for _ in range(2)]
    while not held.is_awaited:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    held.release(nobody)
    held.hold(nobody)
    held.release(other)
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    held.release(nobody)
    await asyncio.gather(*waiting)
    assert not held.is_awaited


async def test_who_holds_it_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and only while somebody waits."""
    monkeypatch.setattr(brake, "PATIENCE_SECONDS", 0.01)
    held, given_up = Brake(), list[str]()

    def give_up() -> None:
        given_up.append("slow")

    held.hold(give_up)
    await asyncio.sleep(0.05)
    assert not given_up, "nobody waits for it"
    await held.released()
    assert given_up == ["slow"]
    await held.released()
    assert given_up == ["slow"]
