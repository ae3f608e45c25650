"""The daemon stays small: it loads neither the command line nor the web server."""

import subprocess
import sys

import pytest

MODULES = ("api", "events", "inbox", "ipc", "metrics", "outbox", "pressure", "settings")
PURE_MESH = ("fingerprint", "identity", "negotiation", "policy", "slug", "wire")
HEAVY = ("typer", "rich", "uvicorn", "asyncpg", "pyspark", "prometheus_client", "starlette")


@pytest.mark.parametrize("module", MODULES)
def test_nothing_heavy_is_loaded(module: str) -> None:
    """Importing a module of the daemon loads none of these, and of mesh only what is pure."""
    pure = tuple(f"tidelog.mesh.{name}" for name in PURE_MESH)
    code = (
        f"import sys, tidelog.daemon.{module}; "
        f"print([name for name in sys.modules if name in {HEAVY!r} "
        f"or name.startswith('tidelog.mesh.') and name not in {pure!r}])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"
