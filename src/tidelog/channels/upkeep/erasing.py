"""Erasure: content that was asked to be forgotten leaves the store and every memory of it.

A request is committed before it is acknowledged, and nothing of it is served from then on;
only what an actor wrote has to be searched for first. Then the content is removed in steps that
hold up nobody. A node that dies in between leaves the rest to its next start, or to another node:
every step may be taken twice.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.channels.decide.closing import SERVER
from tidelog.channels.decide.erasures import (
    ASKED,
    EMPTIED,
    ERASED,
    Doomed,
    EmptyVersions,
    EraseActor,
    EraseHistory,
    EraseMessages,
    Erasure,
    TakeStep,
)
from tidelog.channels.messages import Erased, HistoryErased
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.names import STREAM_PREFIX, stream_name
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.requests import Asked, ForgetTarget
from tidelog.channels.protocol.version import position_of
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.log.committer import Committer
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.log.retention import PRUNE_ENTRIES
from tidelog.store.engine import Store

if TYPE_CHECKING:
    from tidelog.channels.decide.state import ChannelState

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""How long a request waits for its erasure to be complete; after that the response says it is not.
Client libraries give up after four seconds, and repeat."""

LOOK_SECONDS = 30.0
"""How often erasures are looked for that nobody works on: those of a node that died."""

RETRY_SECONDS = 1.0
"""Pause after a failure; twice as long after the next one, up to `LOOK_SECONDS`."""

SEARCHED_ENTRIES = 5000
"""Entries that are searched at once for what an actor wrote."""

NOTED_PAGES = 100
"""Pages without a match after which it is noted how far the search has come."""

MESSAGES_PER_STEP = 100
"""Messages noted as erased, or read, in one step."""

ERASURES_PER_ROUND = 500


class Erasing:
    """Takes orders to erase, and carries out all that there are."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        states: StateLoader,
        *,
        log_tag: str,
        tell: Callable[[Erased], "asyncio.Future[int]"],
        settled: Callable[[Iterable[str]], None],
    ) -> None:
        """`tell` lets nobody serve what is erased from memory; done when other nodes know it.

        `settled` takes channels whose floors were decided on, before anything later is delivered.
        """
        self._committer = committer
        self._store = store
        self._states = states
        self._tag = log_tag
        self._tell = tell
        self._settled = settled
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """Who wants to know when all that was asked for is erased."""
        self._task: asyncio.Task[None] | None = None

    # Orders.

    async def forget(self, app_id: str, target: ForgetTarget, asked: Asked) -> bool:
        """Erase; returns whether it is complete already.

        Raises:
            Fault: there is no such message, or it cannot be erased this way.
        """
        key = self._key(app_id, target)
        stream, actor, message = key
        if message:
            created = (stream, message, target.message_serial)
            if not await self._store.rows("channels_create", created):
                raise fault.not_found(target.message_serial or "", target.channel or "")
        if actor:
            await self._commit(EraseActor(stream, actor, asked))
        elif message:
            await self._forget_message(stream, message, asked)
        else:
            await self._erase_history(stream, MAX_INTEGER, asked)
        what = f"message {message}" if message else f"all that {actor!r} wrote" if actor else "all"
        _log.info("asked to erase %s in %s", what, stream)
        await self._finished()
        return await self._is_complete(key)

    async def is_complete(self, app_id: str, target: ForgetTarget) -> bool:
        """Whether an erasure is complete.

        Raises:
            Fault: it was never asked for.
        """
        return await self._is_complete(self._key(app_id, target))

    async def erase_history(self, stream: str, floor: int | None, asked: Asked) -> HistoryErased:
        """Reset the history of a channel, or purge it up to a serial."""
        old_epoch, new_epoch = await self._erase_history(stream, floor, asked)
        return HistoryErased(old_epoch, new_epoch, await self._finished())

    async def _erase_history(self, stream: str, floor: int | None, asked: Asked) -> tuple[int, int]:
        channel = await self._states.load_channel(stream)
        try:
            item = EraseHistory(
                channel, history_floor=floor or 0, is_reset=floor is None, asked=asked
            )
            old_epoch, new_epoch, through = await self._commit(item, streams=(stream,))
        finally:
            self._states.release(channel)
        await self._tell(Erased((stream,), through=through))
        return old_epoch, new_epoch

    def _key(self, app_id: str, target: ForgetTarget) -> tuple[str, str, int]:
        if target.actor is not None:
            if target.actor in (app_id, SERVER):
                raise fault.invalid_input(
                    "the log names the app itself and the server as actors too, of what no client "
                    "did: forget channels or messages"
                )
            return f"{STREAM_PREFIX}{app_id}/", target.actor, 0
        stream = stream_name(app_id, target.channel or "")
        if target.message_serial is None:
            return stream, "", 0
        message = position_of(target.message_serial, self._tag)
        if message is None:
            raise fault.not_found(target.message_serial, target.channel or "")
        return stream, "", message

    async def _forget_message(self, stream: str, message: int, asked: Asked) -> None:
        """Also one that retention has emptied already: the lake may still have it."""
        channel = await self._states.load_channel(stream)
        try:
            item = EraseMessages([(channel, message)], self._states, asked)
            await self._commit(item, streams=(stream,))
        finally:
            self._states.release(channel)
        await self._tell(Erased((stream,), (message,)))

    async def _is_complete(self, key: tuple[str, str, int]) -> bool:
        found = await self._store.rows("channels_erasure", key)
        if not found:
            raise fault.Fault(404, "not_found", "that was never asked to be forgotten")
        return Erasure._make(found[0]).step == ERASED

    async def _finished(self) -> bool:
        """Wait a moment until all that was asked for is erased; returns whether it is."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._wake.set()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await done
        except TimeoutError:
            return False
        return True

    # Carrying them out.

    def start(self) -> None:
        """Begin with what an earlier process left."""
        self._task = asyncio.create_task(self._work(), name="tidelog-channels-erasing")

    async def _work(self) -> None:
        is_over = self._committer.ended.is_set  # then the store is closed, or soon will be
        ended = asyncio.create_task(self._committer.ended.wait())
        pause, retry = 0.0, RETRY_SECONDS
        while not is_over():
            if pause:
                waking = asyncio.create_task(self._wake.wait())
                await asyncio.wait(
                    (waking, ended), timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                waking.cancel()
                if is_over():
                    break
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self.carry_out()
                pause, retry = LOOK_SECONDS, RETRY_SECONDS
                for each in waiting:
                    if not each.done():
                        each.set_result(None)
            except (QueueFull, StoreError) as error:
                if is_over():
                    break
                _log.warning("erasing was put off: %s", error)
                self._waiting += waiting
                pause, retry = retry, min(2 * retry, LOOK_SECONDS)
            except ShuttingDown:
                break
            except Exception:  # noqa: BLE001 - a mistake of ours; what is asked for stays asked for
                _log.exception("erasing failed")
                pause = LOOK_SECONDS
        ended.cancel()

    async def carry_out(self) -> None:
        """Erase all that was asked for."""
        while True:
            # In this order: what is found for an actor is asked for before the actor is done.
            emptied = await self._at(EMPTIED)
            asked = await self._at(ASKED)
            if asked:
                await self._empty_all(asked)
                await self._commit(TakeStep(asked, EMPTIED))
            elif emptied:
                await self._store.scrub()
                await self._commit(TakeStep(emptied, ERASED))
            else:
                return

    async def _at(self, step: int) -> list[Erasure]:
        rows = await self._store.rows("channels_erasures_at", (step, ERASURES_PER_ROUND))
        return [Erasure._make(row) for row in rows]

    async def _empty_all(self, erasures: Sequence[Erasure]) -> None:
        for erasure in erasures:
            if erasure.actor:
                await self._search(erasure)
            elif not erasure.message:
                await self._empty_channel(erasure)
        messages = [each.message for each in erasures if each.message]
        for start in range(0, len(messages), MESSAGES_PER_STEP):
            await self._empty_messages(messages[start : start + MESSAGES_PER_STEP])

    async def _search(self, erasure: Erasure) -> None:
        """Note every message as erased that an actor wrote to."""
        asked = Asked(f"actor {erasure.actor}")
        at = erasure.searched
        await self._tell(Erased((), prefix=erasure.stream, client_id=erasure.actor))
        pages = 0
        while at < erasure.through:
            through = min(erasure.through, at + SEARCHED_ENTRIES)
            key = (erasure.stream, erasure.actor, at, through)
            found = await self._store.rows("channels_written_by", key)
            at, pages = through, pages + 1
            if not found and at < erasure.through and pages % NOTED_PAGES:
                continue
            for start in range(0, max(1, len(found)), MESSAGES_PER_STEP):
                step = found[start : start + MESSAGES_PER_STEP]
                is_last = start + MESSAGES_PER_STEP >= len(found)
                search = erasure._replace(searched=through) if is_last else None
                await self._erase([(stream, message) for stream, message in step], asked, search)

    async def _erase(
        self, messages: Sequence[tuple[str, int]], asked: Asked, search: Erasure | None
    ) -> None:
        channels: dict[str, ChannelState] = {}
        try:
            for stream, _ in messages:
                if stream not in channels:
                    channels[stream] = await self._states.load_channel(stream)
            doomed = [(channels[stream], message) for stream, message in messages]
            item = EraseMessages(doomed, self._states, asked, search=search)
            await self._commit(item, 512 * len(doomed), streams=tuple(channels))
        finally:
            for channel in channels.values():
                self._states.release(channel)
        if messages:
            await self._tell(Erased((*channels,), tuple(message for _, message in messages)))

    async def _empty_messages(self, messages: Sequence[int]) -> None:
        """Empty all versions of messages."""
        while messages:
            keys = [(message, PRUNE_ENTRIES) for message in messages]
            found = await self._store.rows_of("channels_versions_to_empty", keys)
            versions = [Doomed._make(row) for rows in found for row in rows]
            for start in range(0, len(versions), PRUNE_ENTRIES):
                await self._empty(versions[start : start + PRUNE_ENTRIES], ())
            messages = [
                message
                for message, rows in zip(messages, found, strict=True)
                if len(rows) == PRUNE_ENTRIES
            ]

    async def _empty_channel(self, erasure: Erasure) -> None:
        """Empty all versions of the messages of a channel up to one of them."""
        key = (erasure.stream, erasure.through, PRUNE_ENTRIES)
        while rows := await self._store.rows("channels_messages_to_empty", key):
            versions = [Doomed._make(row) for row in rows]
            gone = {version.message for version in versions}
            if len(versions) == PRUNE_ENTRIES and len(gone) > 1:
                gone.discard(versions[-1].message)  # there may be more of it
            elif len(versions) == PRUNE_ENTRIES:
                gone.clear()
            await self._empty(versions, sorted(gone))

    async def _empty(self, versions: Sequence[Doomed], gone: Sequence[int]) -> None:
        await self._commit(EmptyVersions(versions, gone), 256 * len(versions))

    async def _commit(
        self,
        item: "EraseHistory | EraseActor | EraseMessages | EmptyVersions | TakeStep",
        size_bytes: int = 512,
        *,
        streams: tuple[str, ...] = (),
    ) -> Any:
        answers = await submit_and_wait(
            self._committer,
            item.names(),
            size_bytes,
            (item,),
            at_once=partial(self._settled, streams),
        )
        [answer] = without_failure(answers)
        return answer
