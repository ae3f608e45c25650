"""Takes due rows of the outbox to the broker and records what it replies (mesh 4.1 to 4.3).

A row has at most one attempt under way: it is claimed before anything is sent, and it is free again
only when the attempt's result is stored. A result is stored by compare-and-set, so what an attempt
that was given up learns later changes nothing.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from tidelog.base.errors import StoreError, StoreUntrustworthy
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.outbox.outbox_db import Claim, Outbox, Settlement
from tidelog.daemon.uplink.broker_connection import SendReply
from tidelog.mesh.protocol import policy

LOOK_EVERY_S = 2.0
"""How often rows are looked at for their age when nothing else happens, connected or not."""

STORE_RETRY_S = 1.0
"""Wait after the outbox could not be written: the disk is full, or another program holds it."""

MAX_ERROR_CHARACTERS = 500
"""Of a broker's error text that is kept in `last_error`."""

_log = logging.getLogger(__name__)


class Sender(Protocol):
    """What the worker needs of the connection to the broker."""

    @property
    def connected(self) -> bool:
        """Whether an attempt would reach the broker."""

    async def send(
        self, client_message_id: str, fingerprint: bytes, payload: bytes, supersedes: str | None
    ) -> SendReply:
        """One attempt; always returns, in bounded time."""


class Worker:
    """Runs beside the IPC on the same loop."""

    def __init__(
        self,
        outbox: Outbox,
        uplink: Sender,
        metrics: DaemonMetrics,
        *,
        jitter: Callable[[], float] = lambda: random.uniform(*policy.JITTER),  # noqa: S311 - spread
    ) -> None:
        self._outbox = outbox
        self._uplink = uplink
        self._metrics = metrics
        self._jitter = jitter
        self._wake = asyncio.Event()
        self._attempts: set[asyncio.Task[None]] = set()
        self._settlements: list[Settlement] = []
        """Results that are not stored yet; their rows still count as attempted."""
        self._is_stopping = False

    def wake(self) -> None:
        """There may be something to do: a new row, a connection, an answer."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`, then until every attempt under way has its result."""
        while not (self._is_stopping and not self._attempts and not self._settlements):
            self._wake.clear()
            try:
                self._turn()
                pause = self._pause_s()
            except StoreUntrustworthy:
                raise
            except StoreError as error:
                _log.error("the outbox cannot be written: %s", error)
                pause = STORE_RETRY_S
                await asyncio.sleep(pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            # Who made the row is answered in this turn of the loop, before the claim's fsync.
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Start no more attempts; `run` ends when those under way are recorded."""
        self._is_stopping = True
        self._wake.set()

    def _turn(self) -> None:
        """Store every result there is and claim what is due, with one fsync for both.

        If that fails nothing is changed: the results stay here and no row is claimed.
        """
        settled = self._settlements.copy()
        if settled:
            reach(FaultPoint.DAEMON_ANSWERED)
        changed, claims = self._outbox.turn(settled, self._room())
        for settlement, was_changed in zip(settled, changed, strict=True):
            if was_changed:
                self._metrics.sent[settlement.status] += 1
            else:
                _log.warning("%s: a late answer", settlement.claim.client_message_id)
        del self._settlements[: len(settled)]
        for claim in claims:
            reach(FaultPoint.DAEMON_CLAIMED)
            attempt = asyncio.create_task(self._attempt(claim))
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempts.discard)

    def _room(self) -> int:
        """How many more attempts may be under way."""
        if self._is_stopping or not self._uplink.connected:
            return 0
        return policy.CLAIM_ROWS - len(self._attempts)

    async def _attempt(self, claim: Claim) -> None:
        answer = SendReply(code=None, error="the daemon failed; its log says why")
        try:
            answer = await self._uplink.send(
                claim.client_message_id,
                claim.request_fingerprint,
                claim.payload,
                claim.supersedes,
            )
        except Exception:  # noqa: BLE001 - whatever it is, the row must not stay inflight
            _log.exception("an attempt failed")
        self._settlements.append(self._settlement(claim, answer))
        self._wake.set()

    def _settlement(self, claim: Claim, answer: SendReply) -> Settlement:
        status = policy.status_after(answer.code)
        if status == "done" and answer.duplicate:
            self._metrics.dedupe["out"] += 1
            _log.info("%s: the broker had it already", claim.client_message_id)
            if not answer.history_available:
                self._metrics.dedupe_history_pruned += 1
                _log.warning("%s: its message was pruned there", claim.client_message_id)
        elif status == "done" and self._outbox.is_beyond_window(claim):
            self._metrics.retry_after_dedupe_expired += 1
            _log.warning(
                "%s: accepted as new after the broker may have forgotten an earlier attempt; "
                "its receivers may have it twice",
                claim.client_message_id,
            )
        elif status == "dead":
            _log.warning("%s: refused for good: %s", claim.client_message_id, answer.error)
        return Settlement(
            claim=claim,
            status=status,
            broker_message_id=answer.broker_message_id,
            history_id=answer.history_id,
            incarnation=answer.incarnation,
            error=answer.error[:MAX_ERROR_CHARACTERS] if answer.error else None,
            delay_ms=policy.retry_delay_ms(claim.attempts, self._jitter(), answer.retry_after_s),
        )

    def _pause_s(self) -> float:
        if self._is_stopping or not self._uplink.connected:
            return LOOK_EVERY_S
        if len(self._attempts) >= policy.CLAIM_ROWS:
            return LOOK_EVERY_S
        due_in_ms = self._outbox.next_due_in_ms()
        if due_in_ms is None:
            return LOOK_EVERY_S
        return min(LOOK_EVERY_S, due_in_ms / 1000 + 0.001)
