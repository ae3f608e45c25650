"""The local token: a file that only the daemon's user can read opens the TCP port (mesh 3.1)."""

import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path

FILE_NAME = "token"
TOKEN_BYTES = 32
GRACE_MS = 60_000
"""How long the old token opens the port after it was replaced: programs read the file when they
start, and some are about to make a request."""


class TokenFile:
    """The token in a file, followed when the file is replaced."""

    def __init__(self, path: Path, monotonic_ms: Callable[[], float]) -> None:
        """Read the file; make a new token where it is missing, empty or open to others."""
        self.path = path
        self._monotonic_ms = monotonic_ms
        self._previous: bytes | None = None
        self._previous_until_ms = 0.0
        if self._stamp() is None or not path.read_bytes().strip():
            rotate(path)
        self._seen = self._stamp()
        self._current = path.read_bytes().strip()

    def accepts(self, token: bytes) -> bool:
        """Whether a caller may come in with it."""
        self._follow()
        opens = hmac.compare_digest(token, self._current)
        if self._previous is not None and self._monotonic_ms() < self._previous_until_ms:
            opens |= hmac.compare_digest(token, self._previous)
        return opens

    def _follow(self) -> None:
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        self._seen = stamp
        token = self.path.read_bytes().strip()
        if token and token != self._current:
            self._previous, self._current = self._current, token
            self._previous_until_ms = self._monotonic_ms() + GRACE_MS

    def _stamp(self) -> tuple[int, int] | None:
        """What changes when the file is replaced; None while it is missing or open to others."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return None if found.st_mode & 0o077 else (found.st_ino, found.st_mtime_ns)


def rotate(path: Path) -> None:
    """Replace the token at once and whole; a daemon that runs follows."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
