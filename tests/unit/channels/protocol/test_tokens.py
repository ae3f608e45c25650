"""Capability tokens: what opens a socket and what does not."""

import base64
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.channels.protocol.capabilities import Capabilities
from tidelog.channels.protocol.signatures import sign
from tidelog.channels.protocol.tokens import MAX_TOKEN_BYTES, Claims, TokenRefused, is_id, verify
from tidelog.channels.settings import App

APP = App(id="a", key="k", secret="a secret of more than thirty-two bytes")
NOW = 1_760_000_000.5
GRANTED = {"lab*": ["subscribe", "message-append-own"]}


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims, changed; None leaves one out."""
    whole = {
        "iat": int(NOW),
        "exp": int(NOW) + 3600,
        "jti": "t1",
        "x-sockudo-client-id": "ana",
        "x-sockudo-capability": GRANTED,
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def token(headers: dict[str, Any] | None = None, **changes: Any) -> str:
    """A token as a JWT library writes it."""
    return jwt.encode(claims(**changes), APP.secret, "HS256", headers or {"kid": "k"})


def raw(header: bytes, payload: bytes, app: App = APP) -> str:
    """A token of any bytes, rightly signed."""
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (header, payload)]
    signature = bytes.fromhex(sign(app.secret, ".".join(parts)))
    return ".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()])


HEADER = b'{"alg":"HS256","kid":"k"}'


def refusal(text: str, now: float = NOW, app: App = APP) -> str:
    """Why a token is refused."""
    with pytest.raises(TokenRefused) as refused:
        verify(app, text, now)
    assert app.secret not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("granted", [GRANTED, json.dumps(GRANTED)])
def test_a_good_token(granted: Any) -> None:
    """Client, name, end and capabilities are read; the capabilities as object or as text."""
    assert verify(APP, token(**{"x-sockudo-capability": granted}), NOW) == Claims(
        "ana", "t1", int(NOW), int(NOW) + 3600, Capabilities.from_token(GRANTED)
    )


def test_an_application_with_a_short_secret() -> None:
    """Its tokens verify without a warning: the secret is the application's choice."""
    short = App(id="a", key="k", secret="s")
    text = raw(HEADER, json.dumps(claims()).encode(), short)
    assert verify(short, text, NOW).client_id == "ana"


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        ({}, NOW + 3600 + 29),
        ({"iat": int(NOW) + 30}, NOW),
        ({"nbf": int(NOW) + 30}, NOW),
        ({"exp": int(NOW) + 86_400}, NOW),
        ({"exp": NOW + 1.5}, NOW),
        ({"jti": "\u00e9" * 64, "x-sockudo-client-id": "c" * 128}, NOW),
        ({"x-sockudo-capability": {}}, NOW),
        ({"other": [1], "sub": 5, "aud": "x", "iss": 7}, NOW),
    ],
)
def test_at_the_edge_of_what_is_allowed(changes: dict[str, Any], now: float) -> None:
    """Clocks may differ by 30 s, a token may live for a day, names may have 128 bytes."""
    verify(APP, raw(HEADER, json.dumps(claims(**changes)).encode()), now)


@pytest.mark.parametrize(
    ("changes", "now", "why"),
    [
        ({}, NOW + 3600 + 31, "expired"),
        ({"iat": int(NOW) + 32}, NOW, "iat is in the future"),
        ({"nbf": int(NOW) + 32}, NOW, "nbf is in the future"),
        ({"exp": int(NOW) + 86_401}, NOW, "exp is not within"),
        ({"iat": int(NOW) + 10, "exp": int(NOW) + 10}, NOW, "exp is not within"),
        ({"iat": None}, NOW, "iat is not a number"),
        ({"exp": None}, NOW, "exp is not a number"),
        ({"exp": "soon"}, NOW, "exp is not a number"),
        ({"exp": True}, NOW, "exp is not a number"),
        ({"nbf": "x"}, NOW, "nbf is not a number"),
        ({"jti": None}, NOW, "jti is not text"),
        ({"jti": ""}, NOW, "jti is not text"),
        ({"jti": 5}, NOW, "jti is not text"),
        ({"jti": "\u00e9" * 65}, NOW, "jti is not text"),
        ({"x-sockudo-client-id": None}, NOW, "client-id is not text"),
        ({"x-sockudo-client-id": "c" * 129}, NOW, "client-id is not text"),
        ({"x-sockudo-capability": None}, NOW, "x-sockudo-capability"),
        ({"x-sockudo-capability": "{"}, NOW, "x-sockudo-capability"),
        ({"x-sockudo-capability": '{"a":[],"a":[]}'}, NOW, "duplicate key"),
        ({"x-sockudo-capability": {"a": ["fly"]}}, NOW, "unknown operation"),
        ({"x-sockudo-capability": {f"{n}": [] for n in range(101)}}, NOW, "more than 100"),
    ],
)
def test_claims_that_open_nothing(changes: dict[str, Any], now: float, why: str) -> None:
    """Each rule of channels 2.5 refuses on its own, and says so."""
    assert why in refusal(raw(HEADER, json.dumps(claims(**changes)).encode()), now)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b'{"alg":"none","kid":"k"}', "alg"),
        (b'{"alg":"HS512","kid":"k"}', "alg"),
        (b'{"alg":"hs256","kid":"k"}', "alg"),
        (b'{"kid":"k"}', "alg"),
        (b'{"alg":"HS256"}', "kid"),
        (b'{"alg":"HS256","kid":"other"}', "kid"),
        (b'{"alg":"HS256","kid":"k","crit":["b64"],"b64":false}', "crit"),
        (b'{"alg":"HS256","kid":"k","kid":"k"}', "not a JWT"),
        (b"[]", "not a JWT"),
        (b"\xff", "not a JWT"),
        (b"[" * 3000, "not a JWT"),
    ],
)
def test_headers_that_open_nothing(header: bytes, why: str) -> None:
    """Only HS256 under the application's own key is accepted."""
    assert why in refusal(raw(header, json.dumps(claims()).encode()))


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"{", b"\xff", b'{"iat":1,"iat":1}'])
def test_a_signed_payload_that_is_no_claims(payload: bytes) -> None:
    """A right signature over something else opens nothing."""
    assert refusal(raw(HEADER, payload)) == "not a JWT"


def test_a_token_of_another_secret() -> None:
    """The signature decides."""
    other = App(id="b", key="k", secret="another secret of thirty-two bytes or more")
    assert "signature" in refusal(raw(HEADER, json.dumps(claims()).encode(), other))


@given(st.integers(0, 200), st.sampled_from("AQgw_-."))
def test_one_changed_character_spoils_a_token(at: int, character: str) -> None:
    """No change anywhere gives another token that opens something."""
    good = token()
    at %= len(good)
    other = good[:at] + character + good[at + 1 :]
    if other != good and at < len(good) - 1:
        refusal(other)


@given(st.text(max_size=40) | st.from_regex(r"[\w.-]{0,40}"))
def test_any_text_as_a_token(text: str) -> None:
    """Whatever a peer sends as a token, the answer is a refusal that does not quote it."""
    assert refusal(text) in ("not a JWT", "alg is not HS256")


@pytest.mark.parametrize(
    "text", ["", "..", "a.b.c", "e30.e30.e30", "=.=.=", "\u00e9.x.x", "a.b.c.d"]
)
def test_what_is_no_token(text: str) -> None:
    """Parts that are no base64, no objects, or too few or many."""
    assert refusal(text) in ("not a JWT", "alg is not HS256")


def test_a_token_has_a_size() -> None:
    """A larger one is refused before anything of it is read."""
    assert "8192 bytes" in refusal("x" * (MAX_TOKEN_BYTES + 1))
    assert "8192 bytes" in refusal(token(padding="x" * MAX_TOKEN_BYTES))


def test_what_can_name_a_client() -> None:
    """Text of 1 to 128 bytes in UTF-8, and nothing else."""
    assert is_id("a")
    assert is_id("\u00e9" * 64)
    assert not any(is_id(value) for value in ("", "\u00e9" * 65, 5, None, ["a"], True))
