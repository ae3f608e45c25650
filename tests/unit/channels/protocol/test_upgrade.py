"""What the query of an upgrade asks for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.serving.surface import HttpResponse
from tidelog.channels.protocol.tokens import TokenRefused
from tidelog.channels.protocol.upgrade import Options, claims_of, parse_upgrade
from tidelog.channels.protocol.wire import V1, V2
from tidelog.channels.settings import App

APP = App(id="a", key="k", secret="s")


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"protocol=7&client=js&version=8.6.0&flash=false",
        b"protocol=7&client=python&version=2.2.0&flash=false",
        b"protocol=1",
        b"protocol=0",
        b"protocol=-2",
        b"protocol=22",
        b"client=js",
        b"protocol=7&format=xml&append_mode=snapshot&append_rollup_window=60&echo_messages=x",
        b"protocol=7&token=abc",
    ],
)
def test_v1(query: bytes) -> None:
    """Every integer but 2, and none at all, is V1, which ignores the options of V2."""
    assert parse_upgrade(query) == Options()
    assert Options().version == V1


def test_v2_as_the_client_library_asks() -> None:
    """The defaults of the client library, alone and with everything it may add."""
    query = (
        b"protocol=2&client=python&version=2.2.0&flash=false&format=json&echo_messages=true"
        b"&append_mode=delta"
    )
    assert parse_upgrade(query) == Options(V2)
    assert parse_upgrade(query + b"&append_rollup_window=40&token=a.b-c") == Options(
        V2, token="a.b-c", rollup_window=40
    )
    assert parse_upgrade(b"protocol=2") == Options(V2)


@pytest.mark.parametrize("window", ["0", "20", "40", "100", "500"])
@pytest.mark.parametrize(
    ("mode", "append_mode"), [("", "delta"), ("delta", "delta"), ("full", "full")]
)
def test_v2_options(window: str, mode: str, append_mode: str) -> None:
    """Each allowed value connects."""
    query = (
        f"protocol=2&format=&append_mode={mode}&append_rollup_window={window}&echo_messages=false"
    )
    found = parse_upgrade(query.encode())
    assert isinstance(found, Options)
    assert (found.append_mode, found.echo, found.token) == (append_mode, False, None)
    assert found.rollup_window == int(window)


@pytest.mark.parametrize(
    "query",
    [
        b"protocol=two",
        b"protocol=",
        b"protocol=2.0",
        b"protocol=%D9%A2",
        b"protocol=--2",
        b"protocol=2&format=xml",
        b"protocol=2&format=msgpack",
        b"protocol=2&format=messagepack",
        b"protocol=2&format=protobuf",
        b"protocol=2&format=JSON",
        b"protocol=2&append_mode=snapshot",
        b"protocol=2&echo_messages=yes",
        b"protocol=2&echo_messages=",
    ],
)
def test_bad_values(query: bytes) -> None:
    """A value that means nothing is refused before the upgrade, in the usual envelope."""
    found = parse_upgrade(query)
    assert isinstance(found, HttpResponse)
    assert found.status == 400
    assert json.loads(found.body)["code"] == "invalid_input"


@pytest.mark.parametrize("window", ["60", "", "-20", "020", "40ms", "501"])
def test_a_rollup_window_that_is_none(window: str) -> None:
    """Refused with a code of its own."""
    found = parse_upgrade(f"protocol=2&append_rollup_window={window}".encode())
    assert isinstance(found, HttpResponse)
    told = json.loads(found.body)
    assert found.status == 400
    assert (told["code"], told["ai_code"]) == ("ai_rollup_window_invalid", 104004)


@given(st.binary(max_size=40))
def test_any_query(query: bytes) -> None:
    """Whatever a peer asks for, there is an answer."""
    parse_upgrade(query)


def test_the_token_of_an_upgrade() -> None:
    """Without a token there are no claims, a bad one is refused, and none is ever shown."""
    assert claims_of(APP, Options(V2), 0) is None
    options = Options(V2, token="s3cret")
    with pytest.raises(TokenRefused):
        claims_of(APP, options, 0)
    assert "s3cret" not in repr(options)
