"""The last versions of channels, in memory."""

from tidelog.channels.delivery import HotBuffer
from tidelog.channels.version import CREATE, Version


def version(serial: int) -> Version:
    """A create with this serial."""
    return Version(
        kind=CREATE, message_id=f"m{serial}", history_serial=serial, delivery_serial=serial
    )


def test_a_version_is_found_by_its_serial_while_it_is_kept() -> None:
    """The oldest go first; what is not there, or not where it would be, is not found."""
    hot = HotBuffer(max_versions=3, ttl_seconds=0)
    assert hot.at("s", 1) is None
    for serial in (4, 5, 6, 7):
        hot.add("s", version(serial), 10)
    found = [hot.at("s", serial) for serial in range(9)]
    assert [each and each.message_id for each in found] == [None] * 5 + ["m5", "m6", "m7", None]
    assert hot.at("other", 5) is None
    hot.add("s", version(9), 10)  # one was emptied before it could be delivered
    assert hot.at("s", 8) is None
    assert hot.at("s", 7) is not None
