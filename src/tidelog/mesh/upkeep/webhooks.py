"""Messages to endpoints over HTTP (mesh 7.4): leased, posted, and tried again or buried."""

import asyncio
import hashlib
import hmac
import logging
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tidelog import __version__
from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError, TidelogError
from tidelog.base.ids import UlidFactory
from tidelog.log.committer import Committer
from tidelog.log.decision import Accept, Answer, Failure, Names, Refuse, RowChange, View
from tidelog.log.request import submit_and_wait
from tidelog.mesh.decide.claims import (
    CLAIMED,
    DEAD,
    DELIVERED,
    PENDING,
    DeliveryKey,
    DeliveryState,
    Leased,
    claim_change,
    finish_change,
)
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol.envelopes import Stored, envelope
from tidelog.mesh.protocol.model import WEBHOOK, stream_name
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.upkeep.webhook_client import PostFailed, WebhookClient
from tidelog.store.engine import Store

MAX_ATTEMPTS = 12
MIN_BACKOFF_MS = 1000
MAX_BACKOFF_MS = 300_000

BATCH = 8
"""Messages leased for one endpoint at once; they are posted one after the other, and the lease is
as long as all of them may take."""

LEASE_MARGIN_MS = 5000
"""Beyond the time of the posts themselves: for the transactions that record what became of them."""

PAGE_ENDPOINTS = 256
"""Endpoints looked for in one read."""

POLL_SECONDS = 1.0
"""How often attempts that are due again are looked for: the shortest pause between two."""

GONE = 410

_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


def backoff_ms(attempts: int) -> int:
    """Pause after so many attempts that failed."""
    return min(MAX_BACKOFF_MS, MIN_BACKOFF_MS << min(max(attempts, 1) - 1, 16))


def key_of(broker_message_id: str, endpoint_id: str) -> DeliveryKey:
    """The row of a message for an endpoint."""
    return DeliveryKey(broker_message_id, "", WEBHOOK, endpoint_id)


class Target(NamedTuple):
    """An endpoint, as `mesh_webhook_target` returns it."""

    mesh_id: str
    slug: str
    url: str
    secret: str


class ClaimWebhook(Struct, frozen=True):
    """Lease what an endpoint is to get."""

    endpoint_id: str
    claim_id: str
    lease_ms: int
    asked_at: int

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_webhook_target", (self.endpoint_id,)), self._due()))

    def _due(self) -> tuple[str, tuple[str, int, int]]:
        return "mesh_webhook_due", (self.endpoint_id, self.asked_at, BATCH)

    def decide(self, view: View) -> Accept | Refuse:
        """Returns the `Target` and a `Leased`.

        A row whose last attempt nobody reported (the process died) is buried instead of leased.
        """
        targets = view.rows("mesh_webhook_target", (self.endpoint_id,))
        if not targets:
            return Refuse((None, Leased(self.claim_id, 0)))
        now = view.now_ms
        messages: list[tuple[str, int]] = []
        changes: list[RowChange] = []
        for broker_message_id, history_id, attempts in view.rows(*self._due()):
            key = key_of(broker_message_id, self.endpoint_id)
            if attempts >= MAX_ATTEMPTS:
                changes.append(RowChange("mesh_bury_delivery", (*key, "attempts_exhausted")))
            else:
                messages.append((broker_message_id, history_id))
        leased = Leased(self.claim_id, now + self.lease_ms, tuple(messages))
        changes += [
            claim_change(key_of(message, self.endpoint_id), leased, now) for message, _ in messages
        ]
        answer = (Target._make(targets[0]), leased)
        return Accept(answer, rows=tuple(changes)) if changes else Refuse(answer)


class Attempted(Struct, frozen=True):
    """What became of one post."""

    key: DeliveryKey
    claim_id: str
    status: int | None
    """None if there was no response."""
    error: str = ""

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_delivery", self.key),))

    def decide(self, view: View) -> Accept | Refuse:
        """Returns the new status of the row; None if the lease was lost."""
        rows = view.rows("mesh_delivery", self.key)
        state = DeliveryState._make(rows[0]) if rows else None
        if state is None or state.status != CLAIMED or state.claim_id != self.claim_id:
            return Refuse(None)
        now, key, claim_id = view.now_ms, self.key, self.claim_id
        if self.status is not None and 200 <= self.status < 300:
            change = finish_change(key, claim_id, DELIVERED, now_ms=now)
            return Accept(DELIVERED, rows=(change,))
        error = self.error or f"status_{self.status}"
        if self.status == GONE:
            return Accept(
                DEAD,
                rows=(
                    finish_change(key, claim_id, DEAD, now_ms=now, error="endpoint_gone"),
                    RowChange("mesh_disable_webhook", (key.endpoint_id, now)),
                    RowChange("mesh_end_endpoint", (key.endpoint_id,)),
                ),
            )
        if state.attempts >= MAX_ATTEMPTS:
            return Accept(DEAD, rows=(finish_change(key, claim_id, DEAD, now_ms=now, error=error),))
        again_at = now + backoff_ms(state.attempts)
        change = finish_change(
            key, claim_id, PENDING, now_ms=now, next_attempt_at=again_at, error=error
        )
        return Accept(PENDING, rows=(change,))


class Webhooks:
    """Posts what is due, to several endpoints at once and to each in order."""

    def __init__(
        self, committer: Committer, store: Store, settings: MeshSettings, clock: Clock
    ) -> None:
        self._committer = committer
        self._metrics = committer.metrics.part(MeshMetrics)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._ulids = UlidFactory(clock)
        self.client = WebhookClient(
            timeout_s=settings.webhook_timeout_ms / 1000,
            may_be_private=settings.webhook_allow_private,
        )
        self._busy: dict[str, asyncio.Task[None]] = {}
        """Endpoints that are being served."""
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """There may be something new."""
        self._nudged.set()

    def stop(self) -> None:
        """Give up the attempts that are under way; their leases end by themselves."""
        for task in self._busy.values():
            task.cancel()
        self.client.close()

    async def work(self) -> None:
        """Serve endpoints until it is cancelled."""
        while True:
            try:
                await self.look()
            except (StoreError, QueueFull) as error:
                _log.warning("webhooks were put off: %s", error)
            except ShuttingDown:
                return
            except Exception:  # noqa: BLE001 - a mistake of ours; what is due is looked for again
                _log.exception("webhooks failed")
            # What comes in quick succession is looked for together.
            await asyncio.sleep(POLL_SECONDS / 10)
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._nudged.wait()
            except TimeoutError:
                pass
            self._nudged.clear()

    async def look(self) -> None:
        """Begin to serve endpoints that have something to get, while there are free connections."""
        after = ""
        while len(self._busy) < self._settings.webhook_connections:
            found = await self._store.rows(
                "mesh_endpoints_due", (after, self._clock.now_ms(), PAGE_ENDPOINTS)
            )
            for (endpoint_id,) in found:
                if len(self._busy) >= self._settings.webhook_connections:
                    return
                if endpoint_id not in self._busy:
                    task = asyncio.create_task(self._serve(endpoint_id))
                    self._busy[endpoint_id] = task
                after = endpoint_id
            if len(found) < PAGE_ENDPOINTS:
                return

    async def settled(self) -> None:
        """Return when no endpoint is being served."""
        while self._busy:
            await asyncio.wait(self._busy.values())

    async def _serve(self, endpoint_id: str) -> None:
        """Post one lease; a long backlog lets others have their turn."""
        try:
            lease_ms = BATCH * self._settings.webhook_timeout_ms + LEASE_MARGIN_MS
            now = self._clock.now_ms()
            claim = ClaimWebhook(endpoint_id, self._ulids.mint(), lease_ms, now)
            target, leased = await self._decide(claim, claim.names())
            if target is None:
                return
            for message in leased.messages:
                if await self._attempt(target, endpoint_id, leased.claim_id, *message) == GONE:
                    return
            if len(leased.messages) == BATCH:
                self.nudge()
        except ShuttingDown:
            return
        except TidelogError as error:
            _log.warning("endpoint %s was put off: %s", endpoint_id, error)
        except Exception:  # noqa: BLE001 - a mistake of ours; the lease ends and the row comes again
            _log.exception("endpoint %s failed", endpoint_id)
        finally:
            del self._busy[endpoint_id]

    async def _attempt(
        self, target: Target, endpoint_id: str, claim_id: str, message: str, history_id: int
    ) -> int | None:
        rows = await self._store.rows("mesh_entry", (stream_name(target.mesh_id), history_id))
        if not rows:
            return None  # retention has taken it, and has buried the row
        status, error = None, ""
        body = _body(Stored._make(rows[0]), target)
        try:
            headers = _headers(target, endpoint_id, message, body, self._clock.now_ms())
            status = await self.client.post(target.url, headers, body)
        except PostFailed as failed:
            error = failed.code
        attempted = Attempted(key_of(message, endpoint_id), claim_id, status, error)
        became = await self._decide(attempted, attempted.names())
        self._metrics.deliveries.labels(f"webhook_{became or 'lost'}").inc()
        if became == DEAD:
            _log.warning(
                "message %s did not reach endpoint %s: %s", message, endpoint_id, error or status
            )
        return status

    async def _decide(self, item: ClaimWebhook | Attempted, names: Names) -> Answer:
        [answer] = await submit_and_wait(self._committer, names, 512, (item,))
        if isinstance(answer, Failure):
            raise answer.error
        return answer


def _body(stored: Stored, target: Target) -> bytes:
    """The envelope of mesh 7.2; an endpoint is not a member, so nothing mentions it."""
    fields = envelope(stored, target.slug, "")
    del fields["mention"]
    return _encode(fields)


def _headers(
    target: Target, endpoint_id: str, message: str, body: bytes, now_ms: int
) -> dict[str, str]:
    timestamp = str(now_ms // 1000)
    return {
        "Content-Type": "application/json",
        "User-Agent": f"tidelog/{__version__}",
        "Idempotency-Key": f"{message}:{endpoint_id}",
        "X-Tidelog-Timestamp": timestamp,
        "X-Tidelog-Signature-2": _signature(target, timestamp.encode() + b"." + body),
        "X-Tidelog-Signature": _signature(target, body),
    }


def _signature(target: Target, signed: bytes) -> str:
    return f"sha256={hmac.new(target.secret.encode(), signed, hashlib.sha256).hexdigest()}"
