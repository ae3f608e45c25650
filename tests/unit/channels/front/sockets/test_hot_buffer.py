"""The last versions of channels, in memory."""

from tidelog.channels.front.sockets.hot_buffer import HotBuffer
from tidelog.channels.messages import Entry
from tidelog.channels.protocol.verbs import CREATE
from tidelog.channels.protocol.version import Body, encode_body


def entry(stream: str, serial: int) -> Entry:
    """A create with this serial, committed a second after the one before."""
    body = encode_body(Body(message_id=f"m{serial}", history_serial=serial))
    return Entry(serial, serial * 1000, stream, serial, CREATE, f"e{serial}", body)


def test_what_a_position_missed_is_there_as_a_whole_or_not_at_all() -> None:
    """Not if the oldest of it is gone, too old or has a gap after it; nothing missed is nothing."""
    hot = HotBuffer(max_versions=4, ttl_seconds=10, max_bytes=2**25)
    assert hot.after("s", 7, 7, 0) == ()
    assert hot.after("s", 6, 7, 0) is None
    for serial in (3, 4, 5, 6, 7):
        hot.add(entry("s", serial))

    def after(serial: int, through: int, now_ms: int = 8000) -> list[int] | None:
        found = hot.after("s", serial, through, now_ms)
        return None if found is None else [each.delivery_serial for each in found]

    assert after(3, 7) == [4, 5, 6, 7]
    assert after(4, 6) == [5, 6]
    assert after(7, 7) == []
    assert after(2, 7) is None
    assert after(5, 8) is None, "more than was delivered"
    assert after(3, 7, now_ms=14_000) == [4, 5, 6, 7]
    assert after(3, 7, now_ms=14_001) is None
    assert after(4, 7, now_ms=14_001) == [5, 6, 7]
    hot.add(entry("s", 9))
    assert after(6, 9) is None
    assert after(8, 9) == [9]


def test_a_version_is_found_by_its_serial_while_it_is_kept() -> None:
    """The oldest go first; what is not there, or not where it would be, is not found."""
    hot = HotBuffer(max_versions=3, ttl_seconds=10, max_bytes=2**25)
    assert hot.at("s", 1) is None
    for serial in (4, 5, 6, 7):
        hot.add(entry("s", serial))
    found = [hot.at("s", serial) for serial in range(9)]
    assert [each and each.message_id for each in found] == [None] * 5 + ["m5", "m6", "m7", None]
    assert hot.at("other", 5) is None
    hot.add(entry("s", 9))  # one was emptied before it could be delivered
    assert hot.at("s", 8) is None
    assert hot.at("s", 7) is not None


def test_what_is_too_old_is_not_kept() -> None:
    """Neither of a channel that is still written to, nor of the many that never will be again."""
    hot = HotBuffer(max_versions=100, ttl_seconds=10, max_bytes=2**25)
    for serial in (1, 2, 3):
        hot.add(entry("quiet", serial))
        hot.add(entry("busy", serial))
    hot.add(entry("busy", 12))
    assert hot.at("quiet", 3) is not None, "its last is ten seconds old"
    assert [hot.at("busy", serial) is not None for serial in (1, 2)] == [False, True]
    hot.add(entry("busy", 14))
    assert [hot.at("quiet", serial) for serial in (1, 2, 3)] == [None] * 3
    hot.add(entry("quiet", 15))
    assert hot.at("quiet", 15) is not None


def test_many_channels_that_were_written_to_once_take_no_room() -> None:
    """What is kept is what came within the time, however many came before."""
    hot = HotBuffer(max_versions=100, ttl_seconds=10, max_bytes=2**25)
    for serial in range(1, 1001):
        hot.add(entry(f"channel-{serial}", serial))
    kept = [serial for serial in range(1, 1001) if hot.at(f"channel-{serial}", serial)]
    assert kept == list(range(990, 1001))
