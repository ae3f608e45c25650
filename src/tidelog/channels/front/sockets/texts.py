"""The data of messages that may be changed, for whoever is sent all of it with a change.

A version holds what it added, or nothing if it keeps the data. A front follows the messages that
begin while it has subscribers of their channel, and any that somebody needed the data of; what it
does not have, the store does. What misses a version is of no use: it is forgotten.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from msgspec import UnsetType

from tidelog.channels.messages import Erased
from tidelog.channels.protocol.growing_text import FRAGMENT_BYTES, GrowingText
from tidelog.channels.protocol.verbs import APPEND, CREATE
from tidelog.channels.protocol.version import Version
from tidelog.channels.stored import read_data, read_message
from tidelog.store.engine import Store

MAX_TEXTS = 10_000

TEXT_BYTES = 512
"""What a text weighs in memory besides its data."""


class _Text(GrowingText):
    """The data of one message up to the last version that was followed."""

    __slots__ = ("_length", "last_id", "size", "stream")

    def __init__(self, stream: str, version: Version) -> None:
        super().__init__(version.data, version.committed_id)
        self.stream = stream
        self.last_id = version.committed_id
        self._length = version.data_bytes
        self.size = TEXT_BYTES + self._length

    def follow(self, version: Version) -> int:
        """Include the next version; returns by how much it has grown."""
        if version.committed_id <= self.last_id:
            return 0
        self.last_id = version.committed_id
        before = self.size
        if version.kind == APPEND:
            if not isinstance(version.data, UnsetType):
                data = bytes(version.data)
                self.append(data, version.committed_id)
                self._length += len(data)
        elif not version.keeps_data:
            self.say(version.data, version.committed_id)
            self._length = version.data_bytes
        self.size = TEXT_BYTES + self._length + FRAGMENT_BYTES * len(self._fragments)
        return self.size - before

    def at(self, committed_id: int) -> bytes | None:
        """All the data after that version; None if it is not known, or there is none."""
        return self.data_at(committed_id) if committed_id <= self.last_id else None


class _Load:
    """A text that is being read, and what has come meanwhile."""

    __slots__ = ("held", "is_dropped", "stream", "task")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.task: asyncio.Task[_Text | None]
        self.held: list[Version] = []
        self.is_dropped = False
        """Whether it must not be kept when it is there."""


class Texts:
    """Those in memory, bounded; the least recently written are forgotten first."""

    def __init__(self, store: Store, max_bytes: int, *, is_followed: Callable[[str], bool]) -> None:
        """`is_followed`: whether all that is committed to a channel from now on comes here."""
        self._store = store
        self._is_followed = is_followed
        self._room = max_bytes
        self._bytes = 0
        self._texts: OrderedDict[int, _Text] = OrderedDict()
        """By the number of the message."""
        self._numbers: dict[str, set[int]] = {}
        """By stream; never empty."""
        self._loads: dict[int, _Load] = {}

    def follow(self, stream: str, version: Version, number: int, *, is_wanted: bool) -> None:
        """The next version has come; `is_wanted` if its channel has subscribers."""
        text = self._texts.get(number)
        if text is not None:
            self._texts.move_to_end(number)
            self._grow(text.follow(version))
        elif number in self._loads:
            self._loads[number].held.append(version)
        elif is_wanted and version.kind == CREATE:
            self._add(number, _Text(stream, version))

    def has(self, number: int) -> bool:
        """Whether a message is followed, or about to be."""
        return number in self._texts or number in self._loads

    def at(self, version: Version, number: int) -> bytes | None:
        """All the data after a version, if it is in memory."""
        text = self._texts.get(number)
        return None if text is None else text.at(version.committed_id)

    async def read(self, stream: str, version: Version) -> bytes | None:
        """All the data after a version that does not say it, from memory or from the store.

        The message is followed from then on, if its channel is, so that the next version finds it.
        """
        number = int(version.message_serial[-20:])
        text = self._texts.get(number)
        if text is None and self._is_followed(stream):
            load = self._loads.get(number)
            if load is None:
                load = self._loads[number] = _Load(stream)
                load.task = asyncio.create_task(self._load(number, load))
            text = await asyncio.shield(load.task)
        data = None if text is None else text.at(version.committed_id)
        return await read_data(self._store, version) if data is None else data

    async def _load(self, number: int, load: _Load) -> _Text | None:
        try:
            found = await read_message(self._store, load.stream, number)
            if found is None or not found[0].is_versioned or load.is_dropped:
                return None
            text = _Text(load.stream, found[0])
            for version in load.held:
                text.follow(version)
            self._add(number, text)
            return text
        finally:
            del self._loads[number]

    def _add(self, number: int, text: _Text) -> None:
        self._texts[number] = text
        self._numbers.setdefault(text.stream, set()).add(number)
        self._grow(text.size)

    def _grow(self, by: int) -> None:
        self._bytes += by
        while self._texts and (self._bytes > self._room or len(self._texts) > MAX_TEXTS):
            self._pop(next(iter(self._texts)))

    def _pop(self, number: int) -> None:
        text = self._texts.pop(number, None)
        if text is not None:
            self._bytes -= text.size
            numbers = self._numbers[text.stream]
            numbers.discard(number)
            if not numbers:
                del self._numbers[text.stream]

    def drop(self, numbers: Iterable[int]) -> None:
        """Keep nothing of these messages, also if it is being read."""
        for number in numbers:
            self._pop(number)
            if number in self._loads:
                self._loads[number].is_dropped = True

    def leave(self, stream: str) -> None:
        """A channel may be followed no more: then what is kept of it would miss what comes next."""
        if not self._is_followed(stream):
            self.drop(self._of(stream))

    def _of(self, stream: str, through: int = 2**63) -> list[int]:
        """The messages of a channel up to one of them that are kept or being read."""
        kept = self._numbers.get(stream, ())
        read = (number for number, load in self._loads.items() if load.stream == stream)
        return [number for number in (*kept, *read) if number <= through]

    def forget(self, erased: Erased) -> None:
        """Keep nothing of what is erased."""
        self.drop(erased.messages)
        if erased.through:
            for stream in erased.streams:
                self.drop(self._of(stream, erased.through))

    def clear(self) -> None:
        """Keep nothing."""
        self.drop([*self._texts, *self._loads])
