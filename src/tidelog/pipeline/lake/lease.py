"""The right to write to a lake on an object store: an object that says who has it, and until when.

It is put on the condition that nobody else has put one since it was read, so one process gets it.
Whoever has it renews it while it works; of a process that died it ends by itself. That nobody
writes at the same time makes writing cheap, it does not make it right: clocks differ, and a process
may sleep for longer than its lease. What keeps two writers from losing or doubling anything is that
each commit of a table is such a put too, and says which position it goes on from.
"""

import os
import socket
import threading
import time
from uuid import uuid4

import msgspec

from tidelog.pipeline.lake.object_store import LakeUnavailable, ObjectStore

KEY = "_lock"

LASTS_SECONDS = 30.0
"""How long others wait for a process that died; less than they wait at all."""

RENEWED_SECONDS = 8.0
"""How often it is renewed: three times may fail."""


class _Note(msgspec.Struct, frozen=True):
    """What the object says."""

    holder: str
    """Empty if it was given back."""
    until: float
    """Seconds since 1970."""


class Lease:
    """The lease of one lake, as one process has it or not."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}"
        self._tag: str | None = None
        """Of the object as this process has put it; None if it has not the lease."""
        self._until = 0.0
        """When it ends, by a clock that nobody sets."""
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._renewing: threading.Thread | None = None

    def take(self) -> bool:
        """Take it, if nobody has it."""
        known = self._store.get(KEY)
        if known is not None and _is_taken(known.content):
            return False
        if not self._put(None if known is None else known.tag):
            return False
        self._end.clear()
        self._renewing = threading.Thread(target=self._renew, name="tidelog-lease", daemon=True)
        self._renewing.start()
        return True

    def is_mine(self) -> bool:
        """Whether this process has it still."""
        return self._tag is not None and time.monotonic() < self._until

    def is_known_to_be_mine(self) -> bool:
        """The same, and the store says so: this process may have slept, or its clock be wrong."""
        with self._lock:
            return self.is_mine() and self._store.tag(KEY) == self._tag

    def give_back(self) -> None:
        """Let others have it."""
        self._end.set()
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None
        with self._lock:
            tag, self._tag = self._tag, None
        if tag is None:
            return
        try:
            self._store.put(KEY, msgspec.json.encode(_Note("", 0.0)), tag)
        except LakeUnavailable:
            return  # it ends by itself

    def _put(self, instead: str | None) -> bool:
        with self._lock:
            began = time.monotonic()
            note = _Note(self._holder, time.time() + LASTS_SECONDS)
            self._tag = self._store.put(KEY, msgspec.json.encode(note), instead)
            if self._tag is None:
                # A put whose answer was lost is tried again, and then refused because of itself.
                found = self._store.get(KEY)
                if found is not None and _holder(found.content) == self._holder:
                    self._tag = found.tag
            self._until = began + LASTS_SECONDS
            return self._tag is not None

    def _renew(self) -> None:
        while not self._end.wait(RENEWED_SECONDS):
            try:
                if self._tag is None or not self._put(self._tag):
                    return  # somebody else has it
            except LakeUnavailable:
                continue  # until it ends


def _is_taken(content: bytes) -> bool:
    note = _read(content)
    return note is not None and bool(note.holder) and note.until > time.time()


def _holder(content: bytes) -> str | None:
    note = _read(content)
    return None if note is None else note.holder


def _read(content: bytes) -> _Note | None:
    try:
        return msgspec.json.decode(content, type=_Note)
    except msgspec.MsgspecError:
        return None
