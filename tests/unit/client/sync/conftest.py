"""What the tests of the client core start with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sync.client_core import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A tree-profile client on partition `p`, not connected."""
    bench = Bench(tmp_path / "client.db")
    yield bench
    bench.store.close()
