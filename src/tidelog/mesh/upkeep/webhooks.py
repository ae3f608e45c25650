"""Messages to endpoints over HTTP (mesh 7.4): leased, posted by a front, tried again or buried."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError, TidelogError
from tidelog.base.ids import UlidFactory
from tidelog.link.ends import OwnerEnd
from tidelog.link.message import Message
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure
from tidelog.log.request import Submission, submit_and_wait, without_failure
from tidelog.mesh import messages
from tidelog.mesh.decide.claims import DEAD, Release
from tidelog.mesh.decide.webhook_posts import BATCH, GONE, Attempted, ClaimWebhook, webhook_key
from tidelog.mesh.messages import Leased, Noted, Post, PostsEnded, StopPosting, Target
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.upkeep.questions import Question, Tell
from tidelog.store.engine import Store

LEASE_MARGIN_MS = 5000
"""Beyond the time of the posts themselves: for the transactions that record what became of them."""

PAGE_ENDPOINTS = 256
"""Endpoints looked for in one read."""

POLL_SECONDS = 1.0
"""How often attempts that are due again are looked for: the shortest pause between two."""

_log = logging.getLogger(__name__)


class Webhooks:
    """Has what is due posted, to several endpoints at once and to each in order."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        settings: MeshSettings,
        clock: Clock,
        fronts: Callable[[], Sequence[OwnerEnd]],
        tell_fronts: Callable[[Message], None],
    ) -> None:
        """`fronts` are those that can post, `tell_fronts` tells all."""
        self._committer = committer
        self._metrics = committer.metrics.part(MeshMetrics)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._fronts = fronts
        self._turn = 0
        self._tell_fronts = tell_fronts
        self._ulids = UlidFactory(clock)
        self._busy: dict[str, asyncio.Task[None]] = {}
        """Endpoints that are being served."""
        self._posting: dict[str, tuple[OwnerEnd, Post, asyncio.Future[None]]] = {}
        """By `claim_id`: which front posts what, and what is done when it has ended."""
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """There may be something new."""
        self._nudged.set()

    def stop(self) -> None:
        """Give up the attempts that are under way; their leases end by themselves."""
        for task in self._busy.values():
            task.cancel()
        self._tell_fronts(StopPosting())

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
        if not self._fronts():
            return  # a lease counts as an attempt
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
        """Have one lease posted; a long backlog lets others have their turn."""
        try:
            lease_ms = BATCH * self._settings.webhook_timeout_ms + LEASE_MARGIN_MS
            now = self._clock.now_ms()
            claim = ClaimWebhook(endpoint_id, self._ulids.mint(), lease_ms, now)
            request = submit_and_wait(self._committer, claim.names(), 512, (claim,))
            [(target, leased)] = without_failure(await request)
            if target is None or not leased.messages:
                return
            await self._posted(endpoint_id, target, leased)
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

    async def _posted(self, endpoint_id: str, target: Target, leased: Leased) -> None:
        """Let a front post, and return when it has ended; they take turns.

        Not later than the lease: a front that hangs must not keep an endpoint from the others.
        """
        fronts = self._fronts()
        if not fronts:
            return  # the lease ends by itself
        self._turn += 1
        front = fronts[self._turn % len(fronts)]
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        post = Post(endpoint_id, target, leased)
        self._posting[leased.claim_id] = front, post, ended
        try:
            front.tell(post)
            left_ms = leased.expires_at - self._clock.now_ms()
            await asyncio.wait([ended], timeout=max(0, left_ms) / 1000)
        finally:
            del self._posting[leased.claim_id]

    def attempted(self, asked: messages.Attempted, tell: Tell) -> None:
        """Keep what became of a post.

        Raises:
            QueueFull: see `Committer.submit`.
            ShuttingDown: see `Committer.submit`.
        """
        key = webhook_key(asked.broker_message_id, asked.endpoint_id)
        item = Attempted(key, asked.claim_id, asked.status, asked.error)
        self._committer.submit(Question(item, tell, partial(self._noted, asked), 512))

    def _noted(self, asked: messages.Attempted, became: str | None) -> Message:
        self._metrics.deliveries.labels(f"webhook_{became or 'lost'}").inc()
        if became == DEAD:
            _log.warning(
                "message %s did not reach endpoint %s: %s",
                asked.broker_message_id,
                asked.endpoint_id,
                asked.error or asked.status,
            )
        return Noted(goes_on=asked.status != GONE)

    def ended(self, told: PostsEnded) -> None:
        """A front has done what it was told to."""
        if posting := self._posting.get(told.claim_id):
            _end(posting[2])

    def lost(self, front: OwnerEnd) -> None:
        """A front is gone; what it had to post another one does. Each attempt counts as one."""
        for posting_front, post, ended in self._posting.values():
            if posting_front is front:
                self._release(post)
                _end(ended)

    def _release(self, post: Post) -> None:
        """Give back what nobody has said the outcome of."""
        leased = post.leased
        item = Release(
            tuple(
                [
                    (webhook_key(message, post.endpoint_id), leased.claim_id)
                    for message, _ in leased.messages
                ]
            )
        )

        def released(_: Sequence[Answer | Failure]) -> None:
            self.nudge()

        size_bytes = 128 * len(leased.messages)
        with contextlib.suppress(QueueFull, ShuttingDown):  # the lease ends by itself
            self._committer.submit(Submission(item.names(), size_bytes, (item,), released))


def _end(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)
