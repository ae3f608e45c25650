"""The daemon against everybody who is not its user: a real process, its files and its log.

Each attack is refused as mesh 3.1 says, stores nothing, and leaves nothing secret in the log.
"""

import json
import socket
import time
from collections.abc import Iterator

import pytest

from support import other_user
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.scripted_broker import ScriptedBroker, running

OUTSIDE_A_CONTAINER = (
    "-c",
    """import sys; from tidelog.daemon import __main__, process
process._is_container = lambda settings: False; sys.exit(__main__.main())""",
    "--log-level=debug",
)
"""The daemon as it is where there is no container: tests may run in one, and then no port opens."""

SETTINGS = """
[ipc]
tcp_port = 0
header_timeout_ms = 1000
body_timeout_ms = 1000
"""

BODY = "the harbour master's secret"
SEND = json.dumps({"to": "topic:alerts", "message": BODY, "meta": {"note": "confidential"}})

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    """A broker that keeps its promises."""
    with running(ScriptedBroker()) as broker:
        yield broker


@pytest.fixture(scope="module")
def daemon(broker: ScriptedBroker) -> Iterator[DaemonProcess]:
    """A daemon that runs and has a port."""
    with DaemonProcess(broker.url, settings=SETTINGS, program=OUTSIDE_A_CONTAINER) as daemon:
        daemon.start()
        eventually(lambda: daemon.health()["connected"])
        yield daemon


def token(daemon: DaemonProcess) -> str:
    """What opens the port."""
    return (daemon.data_dir / "token").read_text().strip()


def post(body: str = SEND, path: str = "/v1/send", **headers: str) -> bytes:
    """A send as bytes; header names are written with underscores."""
    given = {"host": "localhost", "content_length": str(len(body)), "connection": "close"}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in {**given, **headers}.items()]
    return ("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]) + body).encode()


def over_tcp(daemon: DaemonProcess, request: bytes) -> tuple[int, str]:
    """Status and error of the answer on the port."""
    with socket.socket() as caller:  # not `create_connection`: another user cannot import its codec
        caller.settimeout(TIMEOUT_S)
        caller.connect(("127.0.0.1", daemon.ready["tcp_port"]))
        return _answer(caller, request)


def over_unix(daemon: DaemonProcess, request: bytes) -> tuple[int, str]:
    """Status and error of the answer on the socket."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(TIMEOUT_S)
        caller.connect(str(daemon.data_dir / "daemon.sock"))
        return _answer(caller, request)


def _answer(caller: socket.socket, request: bytes) -> tuple[int, str]:
    caller.sendall(request)
    received = b""
    while part := caller.recv(65_536):
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body).get("error", "")


def test_another_user_reaches_nothing(daemon: DaemonProcess) -> None:
    """Not the directory, and if somebody opened that by hand, none of the files in it."""
    daemon.ask("GET", "/v1/health")
    assert daemon.data_dir.stat().st_mode & 0o777 == 0o700
    assert other_user.reachable([daemon.data_dir]) == []
    names = ["daemon.sock", "token", "key.json"]
    names += [f"{kind}.db{end}" for kind in ("outbox", "inbox") for end in ("", "-wal", "-shm")]
    files = [daemon.data_dir / name for name in names]
    daemon.data_dir.chmod(0o755)
    daemon.clock_file.chmod(0o644)
    try:
        assert other_user.reachable([*files, daemon.clock_file]) == [daemon.clock_file.name]
    finally:
        daemon.data_dir.chmod(0o700)
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600, file.name


def test_another_user_has_no_token(daemon: DaemonProcess) -> None:
    """The port is open to every user of the machine, and answers none who has not the token."""

    def attempt() -> tuple[int, str]:
        return over_tcp(daemon, post())

    found = other_user.as_nobody(attempt) if other_user.can_change_user() else attempt()
    assert isinstance(found, list | tuple)
    assert tuple(found) == (401, "unauthenticated")
    assert daemon.rows() == {}


REFUSED = {
    "no token": ({}, "", 401, "unauthenticated"),
    "a wrong token": ({"authorization": "Bearer wr0ng-t0ken"}, "", 401, "unauthenticated"),
    "an empty token": ({"authorization": "Bearer "}, "", 401, "unauthenticated"),
    "another scheme": ({"authorization": "Basic {token}"}, "", 401, "unauthenticated"),
    "the token in the query": ({}, "?token={token}", 400, "token_in_url"),
    "the token in both": ({"authorization": "Bearer {token}"}, "?token=x", 400, "token_in_url"),
    "another host": (
        {"authorization": "Bearer {token}", "host": "evil.example"},
        "",
        403,
        "host_forbidden",
    ),
    "an origin": (
        {"authorization": "Bearer {token}", "origin": "http://localhost"},
        "",
        403,
        "origin_forbidden",
    ),
}


@pytest.mark.parametrize("attack", REFUSED)
def test_a_request_that_is_refused(daemon: DaemonProcess, attack: str) -> None:
    """On the port, with the right token wherever that is not what is wrong; no row is written."""
    headers, query, status, error = REFUSED[attack]
    right = token(daemon)
    given = {name: value.format(token=right) for name, value in headers.items()}
    request = post(path="/v1/send" + query.format(token=right), **given)
    assert over_tcp(daemon, request) == (status, error)
    assert daemon.rows() == {}


@pytest.mark.parametrize("attack", ["the token in the query", "another host", "an origin"])
def test_the_socket_is_no_way_around(daemon: DaemonProcess, attack: str) -> None:
    """What is refused on the port for other reasons than the token is refused here as well."""
    headers, query, status, error = REFUSED[attack]
    request = post(path="/v1/send" + query.format(token="x"), **headers)
    assert over_unix(daemon, request) == (status, error)
    assert daemon.rows() == {}


def test_too_much(daemon: DaemonProcess) -> None:
    """A body, a message and a head beyond their limits."""
    large = json.dumps({"to": "topic:alerts", "message": "x" * 65_537})
    huge = SEND + " " * (1_048_577 - len(SEND))
    assert over_unix(daemon, post(large)) == (413, "payload_too_large")
    assert over_unix(daemon, post(huge)) == (413, "payload_too_large")
    assert over_unix(daemon, post(x_padding="y" * 20_000)) == (431, "headers_too_large")
    assert daemon.rows() == {}


@pytest.mark.parametrize("sent", ["half of the head", "half of the body"])
def test_too_slow(daemon: DaemonProcess, sent: str) -> None:
    """Whoever does not go on is told so and closed, and the half send is no send."""
    whole = post()
    half = whole[:20] if sent == "half of the head" else whole[:-10]
    started = time.monotonic()
    assert over_unix(daemon, half) == (408, "request_timeout")
    assert time.monotonic() - started >= 0.3
    assert daemon.rows() == {}


def test_the_log_keeps_secrets(broker: ScriptedBroker) -> None:
    """After attacks and ordinary use, at the most talkative level: no token, key, body or meta."""
    with DaemonProcess(broker.url, settings=SETTINGS, program=OUTSIDE_A_CONTAINER) as daemon:
        daemon.start()
        eventually(lambda: daemon.health()["connected"])
        right = token(daemon)
        for headers, query, _, _ in REFUSED.values():
            given = {name: value.format(token=right) for name, value in headers.items()}
            over_tcp(daemon, post(path="/v1/send" + query.format(token=right), **given))
        own = json.dumps({"to": f"dm:{daemon.public_hex}", "message": BODY, "meta": {"a": "bcd-e"}})
        request = post(own, authorization=f"Bearer {right}", idempotency_key="mine")
        assert over_tcp(daemon, request)[0] == 202
        assert over_unix(daemon, post("{" + BODY)) == (400, "schema_invalid")
        eventually(lambda: [item for item in daemon.inbox() if item["body"] == BODY])
        refused = json.dumps({"to": "topic:alerts", "message": BODY, "client_message_id": "no"})
        broker.judge = lambda frame: (
            {"code": 400, "error": "schema_invalid"} if frame["client_message_id"] == "no" else None
        )
        over_unix(daemon, post(refused))
        eventually(lambda: daemon.outbox("no")["status"] == "dead")
        daemon.terminate()
        log = daemon.log_text()
    assert "security: a token was sent in a URL" in log
    assert "refused for good" in log
    for secret in (right, "wr0ng-t0ken", daemon.key.seed.hex(), BODY, "confidential", "bcd-e"):
        assert secret not in log
