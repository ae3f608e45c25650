"""Do the rows of channels agree with the log? Versions, messages with their states, and counters.

A state is folded again from the entries by the one definition of what a message looks like
(`version.fold`). What entries that were emptied made of a message (its base), and how far a channel
was emptied (its floors), the log cannot tell: these carry seals. So do orders to erase.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from tidelog.base.data.seal import seal
from tidelog.channels.decide.erasures import ERASED
from tidelog.channels.protocol.verbs import CREATE
from tidelog.channels.protocol.version import EVENT, Version, decode_version, fold, stored_version
from tidelog.channels.stored import read_versions
from tidelog.log.derived import Damage, Looked, pages
from tidelog.store.engine import Store

POSITIONS = 1000
"""Of the log, looked at in one read."""

ROWS = 500

MESSAGES = 20
"""Messages of one read: each may have a megabyte, in its create, its base and its state."""

STRETCH = 5000
"""Entries of a channel that are counted in one read."""

WIDTHS = (256, 65536)
"""Of the stretches of a history that are counted (migration 13)."""

STRETCHES = 100
"""Stretches of one read: each may have to count 256 messages."""

TRIES = 5
"""How often a state is looked at that changes while it is folded."""


async def verify_channels(store: Store) -> AsyncIterator[Looked]:
    """A `Verifier`."""
    async for looked in _verify_entries(store):
        yield looked
    async for looked in _verify_versions(store):
        yield looked
    async for looked in _verify_messages(store):
        yield looked
    async for looked in _verify_channels(store):
        yield looked
    async for looked in _verify_stretches(store):
        yield looked


async def _verify_entries(store: Store) -> AsyncIterator[Looked]:
    """Every entry with its content has its version, its message and its channel.

    A message that is erased loses them bit by bit, and has no content when that is complete.
    """
    end = (await store.head()).committed_id
    for after in range(0, end, POSITIONS):
        rows = await store.rows("channels_check_entries", (after, min(after + POSITIONS, end)))
        damage = []
        for at, stream, serial, message, has_body, *has, step in rows:
            has_version, has_message, has_channel = has
            if has_body and not has_version:
                damage.append(Damage("channels_version", f"{message}/{at}", "is missing"))
            if has_version and not has_body:
                problem = "is there, the content of its entry is not"
                damage.append(Damage("channels_version", f"{message}/{at}", problem))
            if has_body and step == ERASED:
                damage.append(
                    Damage("channels_erasure", str(message), "was erased, but is still there")
                )
            if has_body and not has_message and step is None:
                damage.append(Damage("channels_message", str(message), "is missing"))
            if serial == 1 and not has_channel:
                damage.append(Damage("channels_channel", stream, "is missing"))
        yield Looked("channels_version", 0, damage)


async def _verify_versions(store: Store) -> AsyncIterator[Looked]:
    """Every version has its entry."""
    async for page in pages(store, "channels_check_versions", (0, 0), ROWS):
        damage = [
            Damage("channels_version", f"{message}/{at}", "has no such entry in the log")
            for message, at, entry_message in page
            if message != entry_message
        ]
        yield Looked("channels_version", len(page), damage)


class _Message(NamedTuple):
    """A row of `channels_check_messages`."""

    message: int
    stream: str
    history_serial: int
    published_at: int
    is_open: int
    size_bytes: int
    through: int
    state: bytes | None
    base: bytes | None
    base_seal: bytes | None
    entry_stream: str | None
    kind: str
    committed_at: int
    stream_serial: int
    entity: str
    body: bytes | None
    has_stretch: int

    @property
    def is_from_before_seals(self) -> bool:
        """Whether an earlier version wrote its base."""
        return self.base is not None and self.base_seal is None


async def _verify_messages(store: Store) -> AsyncIterator[Looked]:
    async for page in pages(store, "channels_check_messages", (-(2**63),), MESSAGES):
        damage = []
        for row in page:
            message = _Message._make(row)
            if problem := await _problem(store, message):
                damage.append(Damage("channels_message", str(message.message), problem))
        unsealed = sum(_Message._make(row).is_from_before_seals for row in page)
        yield Looked("channels_message", len(page), damage, unsealed)


async def _problem(store: Store, message: _Message) -> str | None:
    """What is wrong with a message; one that changed while it was looked at is looked at again."""
    problem = None
    for _ in range(TRIES):
        try:
            problem = await _problem_now(store, message)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            problem = "its state cannot be read"
        if problem is None:
            return None
        again = await store.rows("channels_check_messages", (message.message - 1, 1))
        if not again or again[0][0] != message.message:
            return None  # it is wholly gone by now
        if again[0] == message:
            break
        message = _Message._make(again[0])
    return problem


async def _problem_now(store: Store, message: _Message) -> str | None:
    if message.entry_stream is None or message.kind not in (CREATE, EVENT):
        return "was not created by an entry of this number"
    if message.stream != message.entry_stream:
        return f"is in {message.stream}, its entry in {message.entry_stream}"
    if message.published_at != message.committed_at:
        return f"says it was published at {message.published_at}, not {message.committed_at}"
    if (problem := _base_problem(message)) or (problem := _state_problem(message)):
        return problem
    base = None if message.base is None else decode_version(message.base)
    created = None if message.body is None else _created(message, message.body)
    origin = base or created
    if origin is None:
        return "has neither its create nor what that left"
    if message.history_serial != origin.history_serial:
        return f"history_serial is {message.history_serial}, not {origin.history_serial}"
    if not message.has_stretch:
        return "is counted in no stretch of its channel"
    stored = None if message.state is None else decode_version(message.state)
    if problem := _column_problem(message, stored, base, created):
        return problem
    if problem := await _open_problem(store, message, stored or created):
        return problem
    if stored is not None and not _is_same(stored, await _folded(store, message, base)):
        return "its state is not what its versions make of it"
    return None


async def _open_problem(store: Store, message: _Message, known: Version | None) -> str | None:
    """Compare whether it is open; versions after its state may have changed that."""
    is_open = 0
    if known is not None:
        is_open = known.opens if message.state is None else int(known.is_open)
        if message.is_open != is_open:
            later = await read_versions(store, message.message, known.committed_id)
            is_open += sum(version.opens for version in later)
    return None if message.is_open == is_open else f"is_open is {message.is_open}, not {is_open}"


def _is_same(stored: Version, folded: Version | None) -> bool:
    """States written before schema 12 do not tell which version said all of the data."""
    if folded is not None and not stored.data_of:
        folded = msgspec.structs.replace(folded, data_of=0)
    return stored == folded


def _created(message: _Message, body: bytes) -> Version:
    return stored_version(
        message.kind,
        message.message,
        message.committed_at,
        message.stream_serial,
        message.entity,
        body,
    )


def _base_problem(message: _Message) -> str | None:
    if message.base is None:
        return None if message.base_seal is None else "a seal of a base that is not there"
    if message.is_from_before_seals or message.base_seal == seal(message.message, message.base):
        return None
    return "its base is not what was written"


def _state_problem(message: _Message) -> str | None:
    if (message.state is None) != (message.through == 0):
        return f"its state is of version {message.through}"
    return None


def _column_problem(
    message: _Message, stored: Version | None, base: Version | None, created: Version | None
) -> str | None:
    """Compare the columns that repeat something of the state, or of the create without one."""
    if stored is not None:
        latest = stored
        if stored.committed_id != message.through:
            return f"its state is of version {stored.committed_id}, not {message.through}"
    elif created is not None:
        latest = created
    else:
        return "has lost its create, and has no state"
    if message.is_from_before_seals and base is not None and base.committed_id == message.through:
        return None  # earlier versions left the size of an earlier state
    if message.size_bytes != latest.data_bytes:
        return f"size_bytes is {message.size_bytes}, not {latest.data_bytes}"
    return None


async def _folded(store: Store, message: _Message, base: Version | None) -> Version | None:
    after = 0 if base is None else base.committed_id
    return fold(base, await read_versions(store, message.message, after, message.through))


async def _verify_channels(store: Store) -> AsyncIterator[Looked]:
    async for page in pages(store, "channels_check_channels", ("",), ROWS):
        counts = await _creates(store, [(row[0], row[-1]) for row in page])
        damage = []
        for (stream, epoch, history_serial, *floors, sealed, _), count in zip(
            page, counts, strict=True
        ):
            if history_serial != count:
                problem = f"history_serial is {history_serial}, {count} messages began here"
                damage.append(Damage("channels_channel", stream, problem))
            # Most channels are never reset or emptied, and have no seal.
            is_untouched = sealed is None and not any((epoch, *floors))
            if not is_untouched and sealed != seal(stream, epoch, *floors):
                problem = "epoch or floors are not what was written"
                damage.append(Damage("channels_channel", stream, problem))
        yield Looked("channels_channel", len(page), damage)


async def _creates(store: Store, channels: Sequence[tuple[str, int]]) -> list[int]:
    """How many messages began in each channel, up to a position of the log."""
    counts, after = [0] * len(channels), [0] * len(channels)
    left = list(range(len(channels)))
    while left:
        keys = [(channels[n][0], after[n], channels[n][1], STRETCH) for n in left]
        found = await store.rows_of("channels_count_creates", keys)
        unfinished = []
        for n, [(creates, length, last)] in zip(left, found, strict=True):
            counts[n] += creates
            after[n] = last
            if length == STRETCH:
                unfinished.append(n)
        left = unfinished
    return counts


async def _verify_stretches(store: Store) -> AsyncIterator[Looked]:
    """Every count of a history is that of its messages."""
    async for page in pages(store, "channels_check_stretches", ("", 0, 0), STRETCHES):
        damage = []
        for stream, width, number, *stored, messages, size_bytes, has_wide in page:
            key, counted = f"{stream}/{width}/{number}", [messages, size_bytes]
            if width not in WIDTHS:
                damage.append(Damage("channels_stretch", key, "has a width that no stretch has"))
            elif stored != counted or not messages:
                problem = f"says {stored}, its messages and their bytes are {counted}"
                damage.append(Damage("channels_stretch", key, problem))
            if not has_wide:
                problem = "the wider stretch around it is missing"
                damage.append(Damage("channels_stretch", key, problem))
        yield Looked("channels_stretch", len(page), damage)
