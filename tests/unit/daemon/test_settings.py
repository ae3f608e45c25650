"""The daemon's settings: flags over its variables over its file (mesh 11)."""

from pathlib import Path

import pytest

from tidelog.base.errors import ConfigError
from tidelog.config.settings import load as load_server
from tidelog.daemon.settings import load
from tidelog.mesh.protocol.slug import is_slug


def test_each_source_wins_over_the_next(tmp_path: Path) -> None:
    """And the server's own variables do not matter."""
    (tmp_path / "daemon.toml").write_text(
        'mesh = "ops"\nbroker = "ws://a"\n[outbox]\nmax_queue_size = 5\nbudget_bytes = 6\n'
    )
    environ = {"TIDELOG_DAEMON_OUTBOX_BUDGET_BYTES": "7", "TIDELOG_PORT": "1"}
    loaded = load(tmp_path, {"broker": "ws://b"}, environ).settings
    assert (loaded.mesh, loaded.broker) == ("ops", "ws://b")
    assert (loaded.outbox.max_queue_size, loaded.outbox.budget_bytes) == (5, 7)
    assert loaded.outbox.max_age_hours_override is None
    assert loaded.ipc.tcp_port is None


def test_optional_numbers_can_be_set(tmp_path: Path) -> None:
    """From a variable as from the file."""
    environ = {
        "TIDELOG_DAEMON_MESH": "ops",
        "TIDELOG_DAEMON_BROKER": "ws://a",
        "TIDELOG_DAEMON_IPC_TCP_PORT": "0",
        "TIDELOG_DAEMON_OUTBOX_MAX_AGE_HOURS_OVERRIDE": "12",
    }
    loaded = load(tmp_path, {}, environ).settings
    assert (loaded.ipc.tcp_port, loaded.outbox.max_age_hours_override) == (0, 12)


@pytest.mark.parametrize(
    "environ", [{}, {"TIDELOG_DAEMON_MESH": "No Slug"}, {"TIDELOG_DAEMON_MESSH": "ops"}]
)
def test_what_is_missing_or_wrong_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    """By its key."""
    with pytest.raises(ConfigError, match=r"mesh|MESH"):
        load(tmp_path, {"broker": "ws://a"}, environ)


@pytest.mark.parametrize(
    "slug", ["ops", "0-a_b", "o" * 63, "Ops", "-ops", "_ops", "o" * 64, "ops\n", "h\u00e4fen", ""]
)
def test_a_daemon_takes_every_slug_that_a_broker_gives(slug: str, tmp_path: Path) -> None:
    """And no other."""
    flags = {"mesh": slug, "broker": "ws://a"}
    if is_slug(slug):
        assert load(tmp_path, flags, {}).settings.mesh == slug
    else:
        with pytest.raises(ConfigError, match="mesh"):
            load(tmp_path, flags, {})


def test_the_server_ignores_the_daemons_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both programs may live in one environment."""
    monkeypatch.chdir(tmp_path)
    load_server({}, {"TIDELOG_DAEMON_MESH": "ops"}, None)
