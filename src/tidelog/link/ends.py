"""The two ends of a link.

A link carries pairs of a number and a message, in order, in both directions. The number is that of
the question which a message asks or answers; 0 if it does neither. What connects the ends is in
`direct`, `unix` and, for tests, `encoded`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from tidelog.base.errors import TidelogError, Unsendable
from tidelog.link import bounds
from tidelog.link.message import Failed, Message, NotAsked, NotSent, error_name

_log = logging.getLogger(__name__)

Send = Callable[[int, Any], None]
"""Gives a number and a message to the other end; never waits. Raises `Unsendable` for what cannot
cross; then nothing was sent."""

A = TypeVar("A", bound=Message)

_ENDING = NotAsked("ShuttingDown", "the server is stopping; connect again")

_LOST = Failed(
    "OutcomeUnknown",
    "the owner of the log is gone; retry with the same key to learn the outcome",
)


class FrontEnd:
    """The front's end: knows who waits for which answer, and how far the log has come here.

    Its owner may be lost (`cut`). Nobody knows then what became of a question, and whoever asked is
    told so; but what may be repeated (`Message.may_repeat`) waits for the next owner, which is
    asked it again (`ask_again`). Nothing else that this end says reaches that one.
    """

    def __init__(self) -> None:
        self.position = 0
        """What the log has up to here, as far as this surface follows it, has come over the link.
        """
        self.send: Send = _no_link
        self.hear: Callable[[Any], None] = _nobody_listens
        """Takes what nobody asked for."""
        self._number = 0
        self._asked: dict[int, Callable[[Any], None]] = {}
        self._repeatable: dict[int, Message] = {}
        """Questions that have no answer yet and may be asked again, in the order of their numbers.
        """
        self._is_cut = False
        self._send_again: Send | None = None
        """To an owner that is asked again, while there is one."""
        self._awaited: list[tuple[int, Callable[[], None]]] = []
        """Positions, and who is called when they are reached."""
        self._finished: asyncio.Future[None] | None = None

    def tell(self, message: Message) -> None:
        """Say something that has no answer.

        Raises:
            Unsendable: it was not said.
        """
        self.send(0, message)

    def ask(self, question: Message, answered: Callable[[Any], None]) -> None:
        """Ask; `answered` takes the answer when it comes, before anything later on the link.

        In one process that may be before this returns, and so may `NotSent` be with any link. What
        was asked cannot be withdrawn.
        """
        if self._finished is not None:
            answered(_ENDING)
            return
        self._number = number = self._number + 1
        self._asked[number] = answered
        if question.may_repeat:
            self._repeatable[number] = question
        try:
            self._send_or_refuse(self.send, number, question)
        except BaseException:
            self._forget(number)
            raise

    def _send_or_refuse(self, send: Send, number: int, question: Message) -> None:
        try:
            send(number, question)
        except Unsendable as error:
            self.received(number, NotSent(error_name(error), str(error)))

    def _forget(self, number: int) -> Callable[[Any], None] | None:
        if self._repeatable:
            self._repeatable.pop(number, None)
        return self._asked.pop(number, None)

    async def answer(
        self, question: Message, at_once: Callable[[Any], None] | None = None
    ) -> Message:
        """Ask, and wait for the answer; a `Failed` is an answer too.

        Whoever waits goes on later than the answer came. So what must happen before anything later
        on the link does `at_once`; it is not called with a `Failed`.
        """
        done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def answered(answer: Message) -> None:
            try:
                if at_once is not None and not isinstance(answer, Failed):
                    at_once(answer)
            except Exception as error:  # noqa: BLE001 - for whoever waits
                if not done.done():
                    done.set_exception(error)
            if not done.done():
                done.set_result(answer)

        self.ask(question, answered)
        return await done

    async def reply(
        self, question: Message, *kinds: type[A], at_once: Callable[[Any], None] | None = None
    ) -> A:
        """As `answer`, which must be of one of these kinds.

        Raises:
            TidelogError: what a `Failed` says.
        """
        answer = await self.answer(question, at_once)
        if isinstance(answer, Failed):
            raise answer.raised()
        assert isinstance(answer, kinds), answer  # noqa: S101 - both halves are ours
        return answer

    def received(self, number: int, message: Any) -> None:
        """The link brings what the owner's half has sent."""
        if not number:
            if self._is_cut:
                return  # it belongs to what begins again
            try:
                self.hear(message)
            except Exception:  # noqa: BLE001 - in one process the owner would fail at it
                _log.exception("receiving a %s failed", type(message).__name__)
        elif answered := self._forget(number):  # None: who was answered has failed at it
            if self._finished is not None:
                self._look_finished()
            answered(message)

    async def finish(self) -> None:
        """Refuse what is asked from now on, and return when all else was answered."""
        if self._finished is None:
            self._finished = asyncio.get_running_loop().create_future()
        self._look_finished()
        await asyncio.shield(self._finished)

    def _look_finished(self) -> None:
        if self._finished is not None and not self._asked and not self._finished.done():
            self._finished.set_result(None)

    def cut(self) -> None:
        """The owner is gone: whoever waits is told so, but for what the next one is asked again."""
        self._is_cut = True
        self._send_again = None
        self.send = self._send_cut
        kept = list(self._repeatable)[: bounds.MAX_REPEATED]
        self._give_up(self._asked.keys() - set(kept))
        awaited, self._awaited = self._awaited, []
        for _, reached in awaited:
            reached()

    def ask_again(self, send: Send) -> None:
        """There is a next owner: ask it what has waited, in the order in which it was asked."""
        self._send_again = send
        for number, question in tuple(self._repeatable.items()):
            self._send_or_refuse(send, number, question)

    def lost(self) -> None:
        """The owner is gone, and nobody is asked again: whoever waits, or asks, is told so."""
        self._repeatable.clear()
        self.cut()

    def _give_up(self, numbers: Iterable[int]) -> None:
        for number in sorted(numbers):
            answered = self._forget(number)
            try:
                if answered is not None:
                    answered(_LOST)
            except Exception:  # noqa: BLE001 - the others must be told too
                _log.exception("telling that the owner is gone failed")
        self._look_finished()

    def _send_cut(self, number: int, message: Any) -> None:
        """What is asked without an owner waits if it may be asked again, as those before it do."""
        if number not in self._repeatable or len(self._repeatable) > bounds.MAX_REPEATED:
            if number:
                self.received(number, _LOST)
        elif self._send_again is not None:
            self._send_again(number, message)

    def passed(self, position: int) -> None:
        """The surface has seen to everything up to `position`."""
        if position > self.position:
            self.position = position
            if self._awaited:
                awaited = self._awaited
                self._awaited = [each for each in awaited if each[0] > position]
                for due, reached in awaited:
                    if due <= position:
                        reached()

    def when_reached(self, position: int, reached: Callable[[], None]) -> None:
        """Call `reached`, which must not raise, once the link has passed `position` of the log.

        At once without an owner: nothing comes any more, and all that it was for begins again.
        """
        if position > self.position and not self._is_cut:
            self._awaited.append((position, reached))
        else:
            reached()

    async def reach(self, position: int) -> None:
        """Return once the link has passed `position`; see `when_reached`."""
        if position > self.position and not self._is_cut:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_reached(position, lambda: None if done.done() else done.set_result(None))
            await done


class OwnerEnd:
    """One front as an owner's half knows it; the halves of surfaces derive from this."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self._work: set[asyncio.Task[None]] = set()

    def tell(self, message: Message) -> None:
        """Say something that nobody asked for."""
        self.send(0, message)

    def answer_later(self, number: int, work: Coroutine[Any, Any, Message]) -> None:
        """Answer with what `work` returns, in the step in which it returns, or that it failed."""
        task = asyncio.create_task(self._answer(number, work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _answer(self, number: int, work: Coroutine[Any, Any, Message]) -> None:
        answer: Message
        try:
            answer = await work
        except Exception as error:  # noqa: BLE001 - whoever asked must not wait for ever
            answer = failed(error)
        self.send(number, answer)


def answering(send: Send, give_up: Callable[[], None]) -> Send:
    """How an owner's half sends over a link that not everything can cross.

    Whoever asked is told that the answer cannot. What nobody asked for is something that the front
    relies on: without it the front must be given up, and begin again.
    """

    def sending(number: int, message: Any) -> None:
        try:
            send(number, message)
        except Unsendable as error:
            _log.error("could not tell a front a %s: %s", type(message).__name__, error)
            if number:
                send(number, Failed(error_name(error), f"the answer cannot be given: {error}"))
            else:
                give_up()

    return sending


def failed(error: Exception) -> Failed:
    """What to answer instead; a mistake of ours is logged here, and not told."""
    if isinstance(error, TidelogError):
        return Failed(error_name(error), str(error))
    _log.error("answering a front failed", exc_info=error)
    return Failed(TidelogError.__name__, f"internal error ({type(error).__name__})")


class AtOwner(Protocol):
    """What an owner's half has for one front."""

    def received(self, number: int, message: Any) -> None:
        """The link brings what the front has sent. Must not raise."""

    def lost(self) -> None:
        """The front is gone with all of its connections."""


class OwnerHalf(Protocol):
    """The half of a surface that is beside the log."""

    def accept(self, send: Send) -> AtOwner:
        """A front has connected; `send` takes what it is to be told and answered."""


def _no_link(number: int, message: Any) -> None:
    raise AssertionError(number, message)


def _nobody_listens(message: Any) -> None:
    raise AssertionError(message)
