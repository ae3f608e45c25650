"""The daemon stays small: it loads neither the command line nor the web server."""

import subprocess
import sys

import pytest

MODULES = (
    *("inbox.inbox_db", "ipc.api", "ipc.events", "ipc.server", "metrics"),
    *("outbox.outbox_db", "outbox.pressure", "settings"),
)
HEAVY = ("typer", "rich", "asyncpg", "pyspark", "prometheus_client", "starlette")


@pytest.mark.parametrize("module", MODULES)
def test_nothing_heavy_is_loaded(module: str) -> None:
    """Importing a module of the daemon loads none of these, and of mesh only what is pure."""
    code = (
        f"import sys, tidelog.daemon.{module}; "
        f"print([name for name in sys.modules if name in {HEAVY!r} "
        "or name.startswith('tidelog.mesh.') and not name.startswith('tidelog.mesh.protocol')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"
