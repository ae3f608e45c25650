"""Appends that leave as one frame (channels 5.13)."""

from msgspec import Raw, json

from tidelog.channels.protocol.rollup import HELD_BYTES, TICK, Rollup, rolled_up
from tidelog.channels.protocol.verbs import APPEND, UPDATE
from tidelog.channels.protocol.version import Projector, Version

WINDOW = 0.04


def version(
    serial: int, text: str = "x", *, message: str = "a", kind: str = APPEND, status: str = ""
) -> Version:
    """The version with this delivery serial."""
    found = Version(
        kind=kind,
        message_id=f"id-{serial}",
        history_serial=1,
        data=Raw(json.encode(text)),
        delivery_serial=serial,
        committed_id=serial,
        message_serial=message,
    )
    if status:
        found.extras = Raw(json.encode({"ai": {"transport": {"status": status}}}))
    return found


def test_the_first_append_leaves_at_once_and_those_soon_after_it_together() -> None:
    """From the first one that is held on they wait for the window, and not a tick longer."""
    rollup = Rollup(40)
    assert not rollup.hold(version(1), 1.0)
    assert not rollup.is_holding
    for serial, now in ((2, 1.02), (3, 1.04), (4, 1.06)):
        assert not rollup.is_broken_by(version(serial))
        assert rollup.hold(version(serial), now)
    assert 1.02 + WINDOW <= rollup.due < 1.02 + WINDOW + TICK
    assert rollup.take(rollup.due).delivery_serial == 4
    assert rollup.hold(version(5), rollup.due + 0.02), "and so on while the stream lasts"


def test_after_a_pause_an_append_leaves_at_once() -> None:
    """A stream that is slower than the window is not held up for nothing."""
    rollup = Rollup(40)
    assert not rollup.hold(version(1), 1.0)
    assert not rollup.hold(version(2), 1.0 + WINDOW)
    assert rollup.hold(version(3), 1.0 + WINDOW + 0.01)
    rollup.take(1.1)
    assert not rollup.hold(version(4), 1.1 + WINDOW)


def test_what_is_held_says_what_its_appends_said() -> None:
    """Their texts joined, with the length of each; all else is of the last one."""
    rollup = Rollup(500)
    rollup.hold(version(1), 0)
    texts = ['wave "a"', "", "\u00e9\n", "\U0001f30a tide"]
    for serial, text in enumerate(texts, 2):
        rollup.hold(version(serial, text), 0)
    assert rollup.held() == rollup.held(), "looking at it takes nothing"
    told = json.decode(Projector("log").frame(rollup.take(0), "room", "s"))
    assert (told["data"], told["rolled"]) == ("".join(texts), [8, 0, 2, 6])
    assert (told["serial"], told["message_id"]) == (5, "id-5")
    headers = told["extras"]["headers"]
    assert headers["sockudo_version_serial"] == Projector("log").serial(version(5))
    assert not rollup.is_holding


def test_one_that_was_held_alone_leaves_as_it_is() -> None:
    """The frame of a single append is the same for everybody."""
    alone = version(2)
    assert rolled_up([b'"x"'], alone) is alone
    assert b"rolled" not in Projector("log").frame(alone, "room", "s")


def test_anything_else_breaks_it() -> None:
    """Another message, another action, one with a gap before it or that somebody must not get."""
    rollup = Rollup(40)
    assert not rollup.is_broken_by(version(1, kind=UPDATE)), "nothing is held"
    rollup.hold(version(1), 0)
    rollup.hold(version(2), 0)
    excluded = version(3)
    excluded.socket_id = "1.2"
    for other in (version(3, message="b"), version(3, kind=UPDATE), version(4), excluded):
        assert rollup.is_broken_by(other)
    rollup.take(0)
    assert not rollup.hold(version(3, message="b"), 0), "the first of another stream"
    assert not rollup.hold(version(4, kind=UPDATE), 0)
    assert not rollup.hold(excluded, 0)


def test_the_last_append_of_a_stream_takes_with_it_what_is_held() -> None:
    """Alone or with others, it does not wait."""
    for status in ("complete", "cancelled"):
        rollup = Rollup(500)
        rollup.hold(version(1), 0)
        assert not rollup.hold(version(2, status=status), 0)
        assert rollup.hold(version(3, status="streaming"), 0)
        assert not rollup.is_over
        assert rollup.hold(version(4, status=status), 0)
        assert rollup.is_over


def test_only_so_much_is_held() -> None:
    """Many small ones or a few large ones: whatever they weigh together."""
    for text in ("", "x" * 10_000):
        rollup = Rollup(500)
        rollup.hold(version(1), 0)
        serial = 1
        while not rollup.is_over:
            serial += 1
            assert rollup.hold(version(serial, text), 0)
        assert (serial - 1) * 120 <= HELD_BYTES + 10_000
        assert len(bytes(rollup.take(0).data)) <= HELD_BYTES + 10_000  # type: ignore[arg-type]
