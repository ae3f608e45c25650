"""Messages to endpoints over HTTP (mesh 7.4): leased, posted, and tried again or buried."""

import asyncio
import hashlib
import hmac
import logging

import msgspec

from tidelog import __version__
from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError, TidelogError
from tidelog.base.ids import UlidFactory
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure, Names
from tidelog.log.request import submit_and_wait
from tidelog.mesh.decide.claims import DEAD
from tidelog.mesh.decide.webhook_posts import (
    BATCH,
    GONE,
    Attempted,
    ClaimWebhook,
    Target,
    webhook_key,
)
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol.envelopes import Stored, received_envelope
from tidelog.mesh.protocol.model import stream_name
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.upkeep.webhook_client import PostFailed, WebhookClient
from tidelog.store.engine import Store

LEASE_MARGIN_MS = 5000
"""Beyond the time of the posts themselves: for the transactions that record what became of them."""

PAGE_ENDPOINTS = 256
"""Endpoints looked for in one read."""

POLL_SECONDS = 1.0
"""How often attempts that are due again are looked for: the shortest pause between two."""

_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


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
        attempted = Attempted(webhook_key(message, endpoint_id), claim_id, status, error)
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
    fields = received_envelope(stored, target.slug, "")
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
