"""Every link keeps the order of messages, and gives each answer to whoever asked."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.base.errors import (
    OutcomeUnknown,
    QueueFull,
    ShuttingDown,
    StoreUnavailable,
    TidelogError,
    Unsendable,
)
from tidelog.link import bounds
from tidelog.link.choice import VARIABLE, connect
from tidelog.link.direct import connect_directly
from tidelog.link.encoded import connect_apart, connect_encoded
from tidelog.link.ends import FrontEnd, OwnerEnd, OwnerHalf, Send
from tidelog.link.following import Following
from tidelog.link.message import Failed, Message, NotSent, Vocabulary


class Ask(Message, frozen=True):
    """Wants an `Answer`, at once or later."""

    text: str
    is_later: bool = False


class Note(Message, frozen=True):
    """Said without being asked, in both directions."""

    text: str
    data: Any = None


class Answer(Message, frozen=True):
    """What was asked."""

    text: str


VOCABULARY = Vocabulary(Ask | Note, Answer | Note | Failed)


class Half:
    """Answers, and says something after each answer."""

    def __init__(self) -> None:
        self.fronts: list[AtHalf] = []

    def accept(self, send: Send) -> "AtHalf":
        """See `OwnerHalf.accept`."""
        self.fronts.append(AtHalf(send))
        return self.fronts[-1]


class AtHalf(OwnerEnd):
    """The one front."""

    def __init__(self, send: Send) -> None:
        super().__init__(send)
        self.heard: list[Any] = []

    def received(self, number: int, message: Any) -> None:
        """See `AtOwner.received`."""
        self.heard.append(message)
        if isinstance(message, Ask):
            if message.is_later:
                self.answer_later(number, self.work(message.text))
            else:
                self.send(number, Answer(message.text))
                self.tell(Note(f"after {message.text}"))

    async def work(self, text: str) -> Message:
        """Fails if told to."""
        await asyncio.sleep(0)
        if text == "unavailable":
            raise StoreUnavailable("try again")
        if text == "large":
            return Answer("x" * 1000)
        if text == "mistake":
            raise RuntimeError("a secret")
        return Answer(text)

    def lost(self) -> None:
        """See `AtOwner.lost`."""


def direct(half: OwnerHalf, vocabulary: Vocabulary) -> FrontEnd:
    """As the others are called."""
    del vocabulary
    return connect_directly(half)


Connect = Callable[[OwnerHalf, Vocabulary], FrontEnd]


@pytest.fixture(params=[direct, connect_encoded, connect_apart])
def link(request: pytest.FixtureRequest) -> Connect:
    """Each kind of link."""
    chosen: Connect = request.param
    return chosen


async def test_answers_and_what_follows_them_come_in_order(link: Connect) -> None:
    """An answer is there before what was said after it, and everything in the order it was said."""
    half = Half()
    end = link(half, VOCABULARY)
    came: list[Any] = []
    end.hear = came.append
    for number in range(5):
        end.ask(Ask(f"{number}"), came.append)
        end.tell(Note("meanwhile", {"n": [number, None, 0.5, "\0\U0001f600"]}))
    done = await end.reply(Ask("last", is_later=True), Answer)
    assert done == Answer("last")
    expected: list[Message] = []
    for number in range(5):
        expected += [Answer(f"{number}"), Note(f"after {number}")]
    assert came == expected
    heard = half.fronts[0].heard
    assert [each.text for each in heard if isinstance(each, Ask)] == [*"01234", "last"]
    assert heard[1] == Note("meanwhile", {"n": [0, None, 0.5, "\0\U0001f600"]})


async def test_what_is_done_at_once_is_done_before_what_follows(link: Connect) -> None:
    """Whoever waits goes on later; what it does at once sees nothing of what comes next."""
    end = link(Half(), VOCABULARY)
    came: list[Any] = []
    end.hear = came.append
    seen: list[list[Any]] = []
    answer = await end.answer(Ask("x"), at_once=lambda _: seen.append(list(came)))
    assert (answer, seen) == (Answer("x"), [[]])
    assert came == [Note("after x")], "it was there before the waiting went on"


async def test_an_error_is_raised_where_it_was_asked_for(
    link: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """By its class and text; of a mistake only that there was one, and nothing is done at once."""
    end = link(Half(), VOCABULARY)
    done: list[Any] = []
    with pytest.raises(StoreUnavailable, match="try again"):
        await end.reply(Ask("unavailable", is_later=True), Answer, at_once=done.append)
    with caplog.at_level(logging.ERROR), pytest.raises(TidelogError) as raised:
        await end.reply(Ask("mistake", is_later=True), Answer, at_once=done.append)
    assert str(raised.value) == "internal error (RuntimeError)"
    assert "a secret" in caplog.text
    assert done == []
    assert type(Failed("QueueFull", "full").raised()) is QueueFull


async def test_a_front_that_fails_at_what_it_hears_does_not_harm_the_owner(
    link: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a message is a function call: the owner goes on as it would beside a socket."""
    half = Half()
    end = link(half, VOCABULARY)
    heard: list[Any] = []

    def hear(message: Any) -> None:
        heard.append(message)
        raise LookupError

    end.hear = hear
    with caplog.at_level(logging.CRITICAL):
        for text in "ab":
            half.fronts[0].tell(Note(text))
        await end.reply(Ask("x", is_later=True), Answer)
    assert heard == [Note("a"), Note("b")]


async def test_who_fails_at_the_loss_keeps_it_from_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All the others are told that the owner is gone, and so is whoever waits from then on."""
    end = FrontEnd()
    end.send = lambda _number, _message: None
    told: list[Any] = []

    def fails(_answer: Any) -> None:
        raise LookupError

    with caplog.at_level(logging.CRITICAL):
        for answered in (fails, told.append):
            end.ask(Ask("anything"), answered)
        end.lost()
    [answer] = told
    assert isinstance(answer, Failed)
    with pytest.raises(OutcomeUnknown):
        await end.reply(Ask("anything"), Answer)


class Keyed(Ask, frozen=True):
    """May be asked twice."""

    @property
    def may_repeat(self) -> bool:
        """See `Message.may_repeat`."""
        return True


class Owner:
    """One owner after the other: what each is asked, and what it answers."""

    def __init__(self, end: FrontEnd) -> None:
        self._end = end
        self.asked: list[tuple[int, Any]] = []

    def send(self, number: int, message: Any) -> None:
        """See `Send`."""
        self.asked.append((number, message))

    def answer(self) -> None:
        """Everything."""
        for number, message in self.asked:
            if number:
                self._end.received(number, Answer(message.text))


async def test_the_next_owner_is_asked_again_what_may_be_repeated() -> None:
    """In the order in which it was asked, and nothing else; whoever else waits is told at once."""
    end, answers = FrontEnd(), dict[str, Any]()
    first, second, third = (Owner(end) for _ in range(3))
    end.send = first.send

    def ask(question: Ask) -> None:
        end.ask(question, lambda answer: answers.setdefault(question.text, answer))

    for question in (Keyed("a"), Ask("b"), Keyed("c"), Keyed("answered")):
        ask(question)
    end.received(4, Answer("answered"))
    end.cut()
    assert [*answers] == ["answered", "b"]
    assert isinstance(answers["b"], Failed), "nobody knows, and it must not be done twice"
    for late in (Ask("d"), Keyed("e")):
        ask(late)
    end.tell(Note("of what is no more"))
    assert isinstance(answers["d"], Failed)
    end.ask_again(second.send)
    ask(Keyed("f"))
    assert [message for _, message in second.asked] == [Keyed(each) for each in "acef"]
    end.cut()
    end.ask_again(third.send)
    assert third.asked == second.asked
    finishing = asyncio.create_task(end.finish())
    await asyncio.sleep(0)
    assert not finishing.done(), "it waits for the answers"
    end.received(0, Note("to what is no more"))
    third.answer()
    await finishing
    assert [answers[each] for each in "acef"] == [Answer(each) for each in "acef"]
    assert len(first.asked) == 4


async def test_no_more_wait_for_the_next_owner_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest are told that nobody knows; when nobody waits for an owner any more, all are."""
    monkeypatch.setattr(bounds, "MAX_REPEATED", 2)
    end, told = FrontEnd(), list[str]()
    end.send = lambda _number, _message: None

    def ask(text: str) -> None:
        end.ask(Keyed(text), lambda answer: told.append(f"{text} {answer.error}"))

    for text in "abc":
        ask(text)
    end.cut()
    assert told == ["c OutcomeUnknown"]
    ask("d")
    end.lost()
    assert told == [f"{text} OutcomeUnknown" for text in "cdab"]


async def test_who_waits_for_a_position_does_not_wait_for_the_next_owner() -> None:
    """What it waits for is in the log, and nothing of it will come here."""
    end = FrontEnd()
    reaching = asyncio.create_task(end.reach(5))
    await asyncio.sleep(0)
    end.cut()
    await reaching
    await end.reach(6)


async def test_a_front_that_ends_waits_for_answers_and_asks_no_more(link: Connect) -> None:
    """What was asked is answered, what is asked then is refused here, and it is over."""
    half = Half()
    end = link(half, VOCABULARY)
    end.hear = lambda _message: None
    asked = asyncio.create_task(end.reply(Ask("before", is_later=True), Answer))
    await asyncio.sleep(0)
    await asyncio.gather(end.finish(), end.finish())
    assert await asked == Answer("before")
    with pytest.raises(ShuttingDown):
        await end.reply(Ask("after"), Answer)
    end.tell(Note("goodbye"))
    await asyncio.sleep(0)
    assert half.fronts[0].heard == [Ask("before", is_later=True), Note("goodbye")]


async def test_a_front_that_ends_does_not_wait_for_a_lost_owner() -> None:
    """Nobody will answer."""
    end = FrontEnd()
    end.send = lambda _number, _message: None
    told: list[Any] = []
    end.ask(Ask("anything"), told.append)
    finishing = asyncio.create_task(end.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    end.lost()
    await finishing
    assert [each.error for each in told] == ["OutcomeUnknown"]


async def test_whoever_waits_for_a_position_goes_on_when_it_is_passed() -> None:
    """Not before, and at once if it was."""
    end = connect_directly(Half())
    end.passed(5)
    await end.reach(5)
    waiting = [asyncio.create_task(end.reach(position)) for position in (6, 8)]
    await asyncio.sleep(0)
    end.passed(7)
    await waiting[0]
    assert not waiting[1].done()
    end.passed(3)
    assert end.position == 7, "it never goes back"
    end.passed(9)
    await waiting[1]


async def test_a_receiver_that_fails_does_not_lose_what_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a frame of many each is received by itself."""
    end = connect_apart(Half(), VOCABULARY)
    came: list[Any] = []

    def hear(message: Any) -> None:
        came.append(message)
        if len(came) == 1:
            raise RuntimeError("once")

    end.hear = hear
    with caplog.at_level(logging.ERROR):
        for text in "ab":
            end.ask(Ask(text), lambda _: None)
        await end.reply(Ask("c", is_later=True), Answer)
    assert came == [Note("after a"), Note("after b")]
    assert "receiving a Note failed" in caplog.text


@pytest.mark.parametrize("connects", [connect_encoded, connect_apart])
async def test_what_cannot_be_encoded_loses_no_neighbour(
    connects: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The links of the tests refuse what a socket would, to whoever asks and nobody else."""
    monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 1000)
    end = connects(Half(), VOCABULARY)
    end.hear = lambda _: None
    answers: list[Any] = []
    with caplog.at_level(logging.CRITICAL):
        for text in ("first", "\ud800", "second"):
            end.ask(Ask(text), answers.append)
        too_large = await end.answer(Ask("large", is_later=True))
        last = await end.answer(Ask("last"))
    assert isinstance(too_large, Failed)
    assert "the answer cannot be given" in too_large.text
    assert sum(isinstance(each, NotSent) for each in answers) == 1
    others = [each for each in answers if not isinstance(each, Failed)]
    assert [*others, last] == [Answer("first"), Answer("second"), Answer("last")]
    with pytest.raises(Unsendable):
        end.tell(Note("", 2**70))


def test_the_first_attaches_and_the_last_detaches() -> None:
    """However many want a name meanwhile, and in whichever order they leave."""
    following = Following()
    assert following.want(["a", "b"]) == ("a", "b")
    assert following.want(["b", "c"]) == ("c",)
    assert following.leave(["a", "b"]) == ("a",)
    assert following.want(["a"]) == ("a",)
    assert following.leave(["c", "b", "a"]) == ("c", "b", "a")
    assert following.want(()) == following.leave(()) == ()


async def test_a_test_chooses_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a variable whose wrong value is not overlooked."""
    for chosen in ("", "encoded", "apart"):
        monkeypatch.setenv(VARIABLE, chosen)
        end = connect(Half(), VOCABULARY)
        end.hear = lambda _: None
        assert await end.reply(Ask(chosen), Answer) == Answer(chosen)
    monkeypatch.setenv(VARIABLE, "telepathy")
    with pytest.raises(ValueError, match="'telepathy' is no link"):
        connect(Half(), VOCABULARY)
