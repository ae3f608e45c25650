"""The addresses of a broker."""

import pytest

from tidelog.base.errors import ConfigError
from tidelog.daemon.uplink.broker_address import resource_url, socket_url


@pytest.mark.parametrize(
    ("broker", "socket", "members"),
    [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("https://host/base/", "wss://host/base", "https://host/base"),
        ("ws://host", "ws://host", "http://host"),
        ("wss://[::1]:9", "wss://[::1]:9", "https://[::1]:9"),
    ],
)
def test_one_address_serves_both(broker: str, socket: str, members: str) -> None:
    """HTTP and WebSocket spellings of a broker mean the same."""
    assert socket_url(broker, "harbour") == f"{socket}/mesh/harbour/ws"
    assert resource_url(broker, "harbour", "members") == f"{members}/mesh/harbour/members"


@pytest.mark.parametrize(
    "broker", ["localhost:8080", "", "ftp://host", "http://", "http://host:99999", "http://[::1"]
)
def test_what_is_no_address_is_refused(broker: str) -> None:
    """The refusal says how to write it."""
    with pytest.raises(ConfigError, match="https://host:port"):
        socket_url(broker, "harbour")


def test_a_password_is_refused_and_not_repeated() -> None:
    """It would end up in the log with every connection."""
    with pytest.raises(ConfigError) as refused:
        socket_url("https://me:hunter2@host", "harbour")
    assert "hunter2" not in str(refused.value)
