"""Signatures of subscriptions, sign-ins and requests, checked against the server SDK's."""

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.channels.protocol import signatures
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.signatures import (
    MAX_AGE_SECONDS,
    is_channel_auth,
    is_signin_auth,
    sign,
    signed_by,
)
from tidelog.channels.settings import App

APP = App(id="a1", key="k1", secret="s\u00e9cret")
OTHER = App(id="a2", key="k2", secret="other")
OFF = App(id="a3", key="k3", secret="off", enabled=False)
APPS = {app.key: app for app in (APP, OTHER, OFF)}
NOW = 1_760_000_000.5
PATH = b"/apps/a1/events"
BODY = b'{"name":"x"}'


def test_known_signature() -> None:
    """The example of the protocol's public documentation comes out."""
    expected = "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4"
    assert sign("7ad3773142a6692b25b8", "1234.1234:private-foobar") == expected


def auth_of(text: str, app: App = APP) -> str:
    """An auth string, computed without our code."""
    digest = hmac.new(app.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    return f"{app.key}:{digest}"


def test_auth_of_a_private_channel() -> None:
    """Socket and channel are signed, and neither can be exchanged."""
    auth = auth_of("1.2:private-x")
    assert is_channel_auth(APP, auth, "1.2", "private-x", None)
    assert not is_channel_auth(APP, auth, "1.3", "private-x", None)
    assert not is_channel_auth(APP, auth, "1.2", "private-y", None)
    assert not is_channel_auth(OTHER, auth, "1.2", "private-x", None)
    assert not is_channel_auth(APP, auth, "1.2", "private-x", "")


def test_auth_of_a_presence_channel() -> None:
    """The exact text of `channel_data` is signed: its order and white space count."""
    data = '{"user_info": {"b":1, "a":2},"user_id":"ana"}'
    auth = auth_of(f"1.2:presence-x:{data}")
    assert is_channel_auth(APP, auth, "1.2", "presence-x", data)
    assert not is_channel_auth(APP, auth, "1.2", "presence-x", json.dumps(json.loads(data)))
    assert not is_channel_auth(APP, auth, "1.2", "presence-x", None)


def test_auth_of_a_signin() -> None:
    """The exact text of `user_data` is signed together with the socket."""
    auth = auth_of('1.2::user::{"id":"\u00e9"}')
    assert is_signin_auth(APP, auth, "1.2", '{"id":"\u00e9"}')
    assert not is_signin_auth(APP, auth, "1.2", '{"id":"e"}')
    assert not is_signin_auth(APP, auth, "1.3", '{"id":"\u00e9"}')


@given(st.data())
def test_one_changed_character_spoils_an_auth_string(data: st.DataObject) -> None:
    """Whatever is changed, cut or added, the whole string is compared."""
    auth = auth_of("1.2:private-x")
    at = data.draw(st.integers(0, len(auth)))
    other = auth[:at] + data.draw(st.text(max_size=2)) + auth[at + 1 :]
    assert is_channel_auth(APP, other, "1.2", "private-x", None) is (other == auth)


# Requests.


def signed(
    method: str = "POST", path: bytes = PATH, body: bytes = BODY, app: App = APP, **changes: Any
) -> bytes:
    """The query of a request signed without our code; changes of None leave a parameter out."""
    query = {
        "auth_key": app.key,
        "auth_timestamp": str(int(NOW)),
        "auth_version": "1.0",
        "body_md5": hashlib.md5(body).hexdigest() if method == "POST" else None,
        **changes,
    }
    query = {name: value for name, value in query.items() if value is not None}
    text = "&".join(f"{name.lower()}={query[name]}" for name in sorted(query, key=str.lower))
    signature = auth_of(f"{method}\n{path.decode()}\n{text}", app).partition(":")[2]
    return urlencode({**query, "auth_signature": signature}).encode()


def check(
    query: bytes,
    method: str = "POST",
    path: bytes = PATH,
    body: bytes = BODY,
    app_id: str = "a1",
    now: float = NOW,
) -> tuple[App, dict[str, str]]:
    """Check a request."""
    signed = signed_by(APPS.get, app_id, method, path, query, now)
    signed.check_body(body)
    return signed.app, signed.query


def refused(query: bytes, **request: Any) -> tuple[int, str]:
    """Status and code with which a request is refused."""
    with pytest.raises(Fault) as found:
        check(query, **request)
    assert APP.secret not in found.value.error
    return found.value.status, found.value.code


def test_a_genuine_request() -> None:
    """Its application and its decoded query are answered."""
    app, query = check(signed())
    assert app is APP
    assert query["auth_key"] == "k1"
    app, query = check(signed("GET", body=b""), "GET", body=b"")
    assert "body_md5" not in query


def test_values_are_signed_decoded() -> None:
    """What stands encoded in the URL is signed as it is meant."""
    extra: dict[str, Any] = {"cursor": "abc+/= \u00e9&x", "info": "a,b", "empty": ""}
    _, query = check(signed("GET", body=b"", **extra), "GET", body=b"")
    assert {name: query[name] for name in extra} == extra


@given(st.dictionaries(st.text("aZ%+&= \u00e9", min_size=1), st.text("aZ%+&= \u00e9")))
def test_queries_are_read_as_the_standard_library_reads_them(extra: dict[str, Any]) -> None:
    """Whatever is encoded comes out again, and empty parts mean nothing."""
    extra = {name: value for name, value in extra.items() if name.lower() == name}
    _, query = check(signed("GET", body=b"", **extra) + b"&", "GET", body=b"")
    assert {name: query[name] for name in extra} == extra


def test_names_are_signed_in_lower_case_and_sorted() -> None:
    """Case and order of the parameters' names do not matter to the signature."""
    _, query = check(signed("GET", body=b"", Zebra="1", aardvark="2"), "GET", body=b"")
    assert query["Zebra"] == "1"


def test_the_path_is_signed_as_received() -> None:
    """A path is not decoded before it is signed: its other spelling is another path."""
    raw = f"/apps/a1/channels/{quote('private-ai:user', safe='')}".encode()
    check(signed("GET", raw, b""), "GET", raw, b"")
    decoded = b"/apps/a1/channels/private-ai:user"
    query = signed("GET", raw, b"")
    assert refused(query, method="GET", path=decoded, body=b"") == (401, "auth_failed")


def test_the_age_of_a_request() -> None:
    """Ten minutes are allowed both ways, a second more is not."""
    for offset in (0, MAX_AGE_SECONDS, -MAX_AGE_SECONDS):
        check(signed(), now=int(NOW) + offset)
    for offset in (MAX_AGE_SECONDS + 1, -MAX_AGE_SECONDS - 1, 700):
        assert refused(signed(), now=int(NOW) + offset) == (401, "auth_failed")


@pytest.mark.parametrize(
    "changes",
    [
        {"auth_timestamp": None},
        {"auth_timestamp": ""},
        {"auth_timestamp": "now"},
        {"auth_timestamp": "-1760000000"},
        {"auth_timestamp": "1760000000.5"},
        {"auth_timestamp": "9" * 5000},
        {"auth_timestamp": "\u0661\u0667\u0666\u0660\u0660\u0660\u0660\u0660\u0660\u0660"},
        {"auth_version": None},
        {"auth_version": "2.0"},
        {"auth_key": None},
        {"body_md5": None},
        {"body_md5": ""},
        {"body_md5": hashlib.md5(b"other").hexdigest()},
        {"body_md5": hashlib.md5(BODY).hexdigest().upper()},
    ],
)
def test_a_parameter_that_is_wrong_though_signed(changes: dict[str, Any]) -> None:
    """Missing, garbled and false parameters are refused even with a right signature."""
    assert refused(signed(**changes)) == (401, "auth_failed")


def test_what_was_changed_after_signing() -> None:
    """Method, path, body, each parameter and the signature itself are covered."""
    query = signed()
    assert refused(query, path=b"/apps/a1/other") == (401, "auth_failed")
    assert refused(query, body=BODY + b" ") == (401, "auth_failed")
    assert refused(query, method="PUT") == (401, "auth_failed")
    assert refused(query + b"&limit=1") == (401, "auth_failed")
    last = b"0" if query[-1:] != b"0" else b"1"
    assert refused(query[:-1] + last) == (401, "auth_failed")
    assert refused(query[:-1]) == (401, "auth_failed")
    assert refused(query.partition(b"&auth_signature")[0]) == (401, "auth_failed")


def test_a_get_has_no_body() -> None:
    """It may say so by the MD5 of one without a byte, and of no other (channels 4.1)."""
    empty = hashlib.md5(b"").hexdigest()
    for md5 in (None, empty):
        check(signed("GET", body=b"", body_md5=md5), method="GET", body=b"")
    query = signed("GET", body=b"", body_md5=hashlib.md5(b"x").hexdigest())
    assert refused(query, method="GET", body=b"x") == (401, "auth_failed")
    query = signed("GET", body=b"", body_md5=empty)
    assert refused(query, method="GET", body=b"x") == (401, "auth_failed")


def test_an_alias_names_the_app_too() -> None:
    """In the path that is signed; the key decides whose it is."""
    app = App(id="a1", alias="4711", key="k1", secret="s1")
    path = b"/apps/4711/events"
    query = signed(app=app, path=path)
    for app_id, found in (("4711", app), ("4712", None), ("", None)):
        try:
            by = signed_by({app.key: app}.get, app_id, "POST", path, query, NOW).app
        except Fault:
            by = None
        assert by == found


def test_whose_key_it_is() -> None:
    """An unknown key is not found; another application's key or a disabled one opens nothing."""
    stranger = App(id="a1", key="k9", secret="x")
    assert refused(signed(app=stranger)) == (404, "app_not_found")
    assert refused(signed(app=OTHER)) == (401, "auth_failed")
    off = signed(app=OFF, path=b"/apps/a3/events")
    assert refused(off, path=b"/apps/a3/events", app_id="a3") == (401, "auth_failed")


@pytest.mark.parametrize("query", [b"", b"a=%FF", b"a=\xff", signed() + b"&auth_key=k1"])
def test_a_query_without_a_meaning(query: bytes) -> None:
    """No query, no UTF-8, or a parameter given twice is malformed rather than unsigned."""
    assert refused(query) == (400, "invalid_input")


@given(st.binary(max_size=60))
def test_any_bytes_as_a_query(query: bytes) -> None:
    """Whatever a peer sends, the answer is a refusal."""
    assert refused(query)[0] in (400, 401, 404)


# Queries that are read in one go.


def verdict(query: bytes, method: str = "POST") -> object:
    """What becomes of a request with this query."""
    try:
        return signed_by(APPS.get, "a1", method, PATH, query, NOW)
    except Fault as refused:
        return refused.body()


@given(st.data())
def test_a_query_has_one_meaning_however_it_is_read(data: st.DataObject) -> None:
    """The short way of reading a query and the long one agree, whatever is done to the query."""
    changes: dict[str, Any] = data.draw(
        st.dictionaries(
            st.sampled_from(["auth_key", "auth_timestamp", "auth_version", "body_md5", "x", "B"]),
            st.one_of(st.none(), st.sampled_from(["k1", "1.0", "1.0\n", "7", "a" * 32, "A" * 32])),
            max_size=2,
        )
    )
    parts = signed(**changes).split(b"&")
    if data.draw(st.booleans()):
        parts.sort()
    if data.draw(st.booleans()):
        parts.insert(
            data.draw(st.integers(0, len(parts))),
            data.draw(st.sampled_from([b"", b"auth_signature=" + b"0" * 64, *parts])),
        )
    query = bytearray(b"&".join(parts))
    if data.draw(st.booleans()):
        query[data.draw(st.integers(0, len(query) - 1))] = data.draw(st.sampled_from(b"&=%+0aZ\n"))
    method = data.draw(st.sampled_from(["POST", "GET"]))
    found = verdict(bytes(query), method)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(signatures, "_read_plain", lambda _: None)
        assert found == verdict(bytes(query), method)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_what_the_sdks_send_is_read_in_one_go(is_sorted: bool) -> None:
    """The signature stands at the end, or in its place in the alphabet."""
    parts = signed().split(b"&")
    query = b"&".join(sorted(parts) if is_sorted else parts)
    assert signatures._read_plain(query) == signatures._read(query)
    assert check(query)[0] is APP


@given(st.text(max_size=200), st.binary(max_size=300))
def test_an_hmac_begun_before_is_the_same(secret: str, text: bytes) -> None:
    """Keys longer than a block too."""
    assert signatures._hmac(secret, text) == hmac.digest(secret.encode(), text, "sha256").hex()
