"""What tests of documents share: a place for their commands."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tdl-") as name:
        yield Path(name)


@pytest.fixture
def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
