"""A port that somebody else has is waited for, but not for long."""

import socket

import pytest

from tidelog.base.errors import ConfigError
from tidelog.web import listening


def test_a_port_that_becomes_free_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a server that was killed, whose fronts end a moment after it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                other.close()

        monkeypatch.setattr("tidelog.web.listening.time.sleep", pause)
        with listening.listen("127.0.0.1", port) as taken:
            assert taken.getsockname()[1] == port
    assert pauses == [listening.TRY_SECONDS] * 3


def test_a_port_that_stays_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second; an address that is not this machine's at once."""
    pauses: list[float] = []
    monkeypatch.setattr("tidelog.web.listening.time.sleep", pauses.append)
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ConfigError, match=r"cannot listen on 127.0.0.1:.* in use"):
            listening.listen("127.0.0.1", other.getsockname()[1])
        assert sum(pauses) == pytest.approx(1.0)
        with pytest.raises(ConfigError, match=r"cannot listen on 192.0.2.1:0: .*assign"):
            listening.listen("192.0.2.1", 0)
    assert len(pauses) == listening.TRIES - 1
