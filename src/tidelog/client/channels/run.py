"""`Run`: a piece of work of an agent, told to everybody on a channel, which they can stop.

    async with publisher.run("room-7", client_id="ana") as run:
        async for token in model:
            await run.write(token)

The contract is docs/protocol/runs.md.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from uuid import uuid4

import msgspec

from tidelog.base.errors import TidelogError
from tidelog.channels.protocol.runs import OUTPUT, RUN_END, RUN_RESUME, RUN_START, RUN_SUSPEND
from tidelog.client.channels import token_buffer
from tidelog.client.channels.cancels import HeardCancel, RunFacts, means, read_heard
from tidelog.client.channels.message import Message
from tidelog.client.channels.stream import MessageStream
from tidelog.client.channels.token_buffer import Status, StreamEnded, with_transport

if TYPE_CHECKING:
    from tidelog.client.channels.cancels import CancelWatch
    from tidelog.client.channels.publisher import ChannelPublisher

T = TypeVar("T")

Reason = Literal["complete", "cancelled", "error", "suspended"]

EARLIER_MS = 3_600_000
"""How long before its start a cancel of a run is looked for: it was a race, not a plan."""

EARLIER_MESSAGES = 1000
"""The most that is looked through for it."""

FAILED = "run_failed"
TOOL_FAILED = "tool_failed"
"""`error-code` of what an exception ended; what it says is not told to others."""

_GIVEN_UP = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
"""What ends a block from outside."""

_TOOL = {"stream": "false", "role": "tool"}

_encode = msgspec.json.Encoder().encode
_log = logging.getLogger("tidelog.client.channels.client")


class RunCancelled(TidelogError):  # noqa: N818 - the event is the noun
    """Somebody cancelled the run. Leave the block: it ends the run as cancelled."""

    def __init__(self, run: "Run") -> None:
        super().__init__(f"the run {run.run_id} was cancelled")
        self.run = run


class RunFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """Raise it inside a run to end it with an error that subscribers are told."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class ToolCall:
    """A call of a tool; set its `result` inside the block."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.result: Any = None
        """What the tool returned: a JSON value."""


class Run:
    """One run, for the length of an `async with`.

    Entering it subscribes to the channel, so that no cancel is missed, and publishes
    `ai-run-start`. Leaving it ends its message and publishes `ai-run-end`: as `complete`; as
    `cancelled` if somebody cancelled it, whether or not the block noticed; as `error` if the block
    raised. `RunCancelled` ends at the block, every other exception leaves it.

    On a presence channel it is there as the member `agent`.

    A process that dies ends nothing: 60 s after its last write the server cancels its open message
    and ends the run with the error code `orphan_timeout`. A run that is silent keeps its message
    open.
    """

    def __init__(
        self,
        publisher: "ChannelPublisher",
        watch: "CancelWatch",
        channel: str,
        *,
        client_id: str | None,
        run_id: str | None,
        resume: bool,
        transport: Mapping[str, str],
        max_buffered: int,
    ) -> None:
        self.run_id = str(uuid4()) if run_id is None else run_id
        self.invocation_id = str(uuid4())
        """Of this block; a run that is resumed has several."""
        self.channel = channel
        self.client_id = client_id
        """Whose the run is: who may cancel it without `run_cancel_any`."""
        self.reason: Reason | None = None
        """How it ended; None before that."""
        self._publisher = publisher
        self._watch = watch
        self._is_named = run_id is not None
        self._resumes = resume
        self._max_buffered = max_buffered
        self._transport = {
            "run-id": self.run_id,
            "invocation-id": self.invocation_id,
            "run-client-id": client_id or "",
            **transport,
        }
        self._facts: RunFacts | None = None
        self._early: list[HeardCancel] = []
        """Heard before it was known where the run starts."""
        self._cancelled = asyncio.Event()
        self._stream: MessageStream | None = None
        self._status_serial: str | None = None
        self._is_suspended = False
        self._is_over = False
        self._looking: asyncio.Task[None] | None = None

    # Cancelling.

    @property
    def cancelled(self) -> bool:
        """Whether somebody cancelled it."""
        return self._cancelled.is_set()

    async def wait_cancelled(self) -> None:
        """Wait until somebody cancels it."""
        await self._cancelled.wait()

    def check(self) -> None:
        """Raise `RunCancelled` if somebody cancelled it."""
        if self.cancelled:
            raise RunCancelled(self)

    async def watch(self, items: AsyncIterable[T]) -> AsyncIterator[T]:
        """The items of a model, or of anything else, until somebody cancels the run.

        A model that is silent is not waited for: it is cancelled and closed.

        Raises:
            RunCancelled: as soon as the run is cancelled.
        """
        iterator = aiter(items)
        stop = asyncio.create_task(self._cancelled.wait())
        try:
            while True:
                self.check()
                item = asyncio.ensure_future(anext(iterator))
                try:
                    await asyncio.wait((item, stop), return_when=asyncio.FIRST_COMPLETED)
                    if not item.done():
                        raise RunCancelled(self)
                finally:
                    if not item.done():
                        item.cancel()
                        await asyncio.gather(item, return_exceptions=True)
                try:
                    found = item.result()
                except StopAsyncIteration:
                    return
                yield found
        finally:
            stop.cancel()
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    def heard(self, cancel: HeardCancel) -> None:
        """See `Listener.heard`."""
        if self._facts is None:
            self._early.append(cancel)
        elif means(cancel, self._facts):
            self._cancelled.set()

    def missed(self) -> None:
        """See `Listener.missed`."""
        if self._facts is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_again(self._facts))

    async def _look_again(self, facts: RunFacts) -> None:
        """The subscription had a gap: read what came since the start."""
        cursor: str | None = None
        try:
            while facts.history_serial is not None:
                page = await self._publisher.history(
                    self.channel, start_serial=facts.history_serial, cursor=cursor
                )
                for message in page.items:
                    self._hear(message)
                cursor = page.next_cursor
                if cursor is None or self.cancelled:
                    return
        except TidelogError as error:
            _log.warning("channels: cancels of run %s were not read: %s", self.run_id, error)

    def _hear(self, message: Message) -> None:
        found = read_heard(message)
        if found is not None:
            self.heard(found)

    # Its life.

    async def __aenter__(self) -> Self:
        """Subscribe and start.

        Raises:
            PublishRefused, PublishFailed: the start could not be published.
            SubscriptionRefused, ChannelOffline: cancels could not be heard.
        """
        if self._is_over or self._facts is not None:
            raise StreamEnded("a run is entered once; call `run` again")
        await self._watch.follow(self.channel, self)
        try:
            event = RUN_RESUME if self._resumes else RUN_START
            started = await self._publisher.publish(
                self.channel, event, "", extras=with_transport(None, self._transport)
            )
            at, history_serial = started.delivery_serial or 0, started.history_serial
            earlier: list[HeardCancel] = []
            if self._is_named and history_serial is not None:
                earlier = await self._earlier(history_serial)
            self._facts = RunFacts(self.run_id, self.client_id, at, history_serial)
            for heard in (*earlier, *self._early):
                self.heard(heard)
        except BaseException:
            self._is_over = True
            await self._watch.leave(self.channel, self)
            raise
        return self

    async def _earlier(self, start: int) -> list[HeardCancel]:
        """Cancels from before the run started; nobody could cancel a run that had no name yet."""
        found: list[HeardCancel] = []
        cursor: str | None = None
        newest = looked_at = 0
        while looked_at < EARLIER_MESSAGES:
            page = await self._publisher.history(self.channel, end_serial=start, cursor=cursor)
            for message in page.items:
                newest = newest or message.published_at_ms
                if message.published_at_ms < newest - EARLIER_MS:
                    return found
                looked_at += 1
                heard = read_heard(message)
                if heard is not None:
                    found.append(heard)
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._is_over:
            return False
        self._is_over = True
        self.reason = self._reason(error)
        try:
            if error is None:
                await self._end(None)
            else:
                await self._in_time(self._end(error), "the end")
        finally:
            if self._looking is not None:
                self._looking.cancel()
            await self._watch.leave(self.channel, self)
        return isinstance(error, RunCancelled) and error.run is self

    def _reason(self, error: BaseException | None) -> Reason:
        if self.cancelled or isinstance(error, _GIVEN_UP):
            return "cancelled"
        if error is not None:
            return "error"
        return "suspended" if self._is_suspended else "complete"

    async def _in_time(self, ending: Coroutine[Any, Any, Any], what: str) -> None:
        """Say how something ended, if that can be said: the reason for it is what is raised."""
        task = asyncio.create_task(ending)
        await asyncio.wait((task,), timeout=token_buffer.CLOSE_TIMEOUT_S)
        failure: object = "no response in time"
        if task.done():
            failure = None if task.cancelled() else task.exception()
        else:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if failure is not None:
            _log.warning("channels: %s of run %s was not told: %s", what, self.run_id, failure)

    async def _end(self, error: BaseException | None) -> None:
        status: Status = "cancelled" if self.reason == "cancelled" else "complete"
        try:
            await self._close_message(status, self._told(error))
        except TidelogError as failure:
            # The run ends all the same; what is told is what became of its message.
            if self.reason == "complete":
                self.reason = "error"
            await self._publish_end(error or failure)
            if error is None:
                raise
            _log.warning("channels: a message of run %s was not ended: %s", self.run_id, failure)
        else:
            await self._publish_end(error)

    async def _publish_end(self, error: BaseException | None) -> None:
        transport = {**self._transport, **self._told(error)}
        event = RUN_SUSPEND if self.reason == "suspended" else RUN_END
        if event == RUN_END:
            transport["run-reason"] = str(self.reason)
        extras = with_transport(None, transport)
        await self._publisher.publish(self.channel, event, "", extras=extras)

    def _told(self, error: BaseException | None) -> dict[str, str]:
        """What others are told of an error."""
        if self.reason != "error":
            return {}
        if isinstance(error, RunFailed):
            message = {"error-message": error.message} if error.message else {}
            return {"error-code": error.code, **message}
        return {"error-code": FAILED}

    # What it says.

    def _open(self) -> None:
        if self._facts is None or self._is_over:
            raise StreamEnded("the run is not open")
        self.check()

    @property
    def message_serial(self) -> str | None:
        """The message that `write` adds to; None before the first token and between messages."""
        return None if self._stream is None else self._stream.message_serial

    async def write(self, token: str) -> None:
        """Add text to the answer; see `MessageStream.write`.

        The first text begins a message, and so does the first after `tool` or `new_message`.

        Raises:
            RunCancelled: somebody cancelled the run; what was written before is kept.
            PublishRefused, PublishFailed: as in `MessageStream.write`.
        """
        self._open()
        if not token:
            return
        if self._stream is None:
            stream = MessageStream(
                self._publisher,
                self.channel,
                OUTPUT,
                extras=self._extras({"stream": "true", "role": "assistant"}),
                message_id=None,
                max_buffered=self._max_buffered,
            )
            self._stream = await stream.__aenter__()
        await self._stream.write(token)

    async def write_all(self, tokens: AsyncIterable[str]) -> None:
        """Write what a model says, to its end; stops at once when the run is cancelled."""
        async for token in self.watch(tokens):
            await self.write(token)

    async def new_message(self) -> None:
        """Complete the message that is being written; the next text begins another one."""
        self._open()
        await self._close_message("complete", {})

    async def status(self, text: str) -> None:
        """Tell what the agent does at the moment, in one message that changes."""
        self._open()
        if self._status_serial is None:
            extras = self._extras({"stream": "false", "role": "agent"}, {"type": "status"})
            made = await self._publisher.publish(self.channel, OUTPUT, text, extras=extras)
            self._status_serial = made.message_serial
        else:
            await self._publisher.update(self.channel, self._status_serial, data=text)

    @contextlib.asynccontextmanager
    async def tool(
        self, name: str, arguments: Any = None, *, call_id: str | None = None
    ) -> AsyncIterator["ToolCall"]:
        """A call of a tool, for the length of an `async with`.

        A message tells of the call while the block lasts and of its result afterwards; text that
        was being written is complete. An exception marks the call as failed and leaves the block;
        the run goes on if it is caught.
        """
        self._open()
        call = ToolCall(str(uuid4()) if call_id is None else call_id)
        said = {"name": name, "arguments": arguments}
        codec = {"type": "tool-call", "toolName": name, "toolCallId": call.call_id}
        extras = self._extras({**_TOOL, "status": "streaming"}, codec)
        made = await self._publisher.publish(self.channel, OUTPUT, said, extras=extras)
        serial = token_buffer.serial_of(made, self.channel)
        await self._close_message("complete", {})
        keeping = asyncio.create_task(self._keep_open(serial))
        told = {"status": "complete"}
        try:
            yield call
            said["result"] = call.result
        except BaseException as error:
            is_stopped = isinstance(error, (RunCancelled, *_GIVEN_UP))
            told |= {} if is_stopped else {"error-code": TOOL_FAILED}
            raise
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            if self.cancelled or ("result" not in said and "error-code" not in told):
                told["status"] = "cancelled"
            text = _encode(said).decode()
            extras = self._extras({**_TOOL, **told}, codec)
            ending = self._publisher.update(self.channel, serial, data=text, extras=extras)
            if "result" in said:
                await ending
            else:
                await self._in_time(ending, f"the end of {name}")
        self.check()

    async def _keep_open(self, serial: str) -> None:
        """Tell the server every now and then that the writer of a silent message lives."""
        while True:
            await asyncio.sleep(token_buffer.KEEP_OPEN_S)
            await self._publisher.update(self.channel, serial)

    def suspend(self) -> None:
        """Leaving the block suspends the run instead of ending it; see `resume` of `run`."""
        self._open()
        self._is_suspended = True

    def _extras(
        self, transport: Mapping[str, str], codec: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        extras = with_transport(None, {**self._transport, **transport})
        if codec:
            extras["ai"]["codec"] = dict(codec)
        return extras

    async def _close_message(self, status: Status, told: Mapping[str, str]) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.end(status, told)
