"""`tidelog mesh` and `tidelog daemon` without any process."""

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer

from support.cli.inside import invoked
from tidelog.base.errors import ConfigError, TidelogError
from tidelog.cli.commands import app
from tidelog.cli.main import main
from tidelog.daemon.key_file import read_key
from tidelog.mesh.protocol.identity import is_signed, join_message


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command below a group, and the groups that are commands too."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path
        return
    if command.invoke_without_command and path:
        yield path
    for name, below in inner.items():
        yield from leaves(below, (*path, name))


COMMANDS = [path for path in leaves(typer.main.get_command(app)) if path[0] in ("mesh", "daemon")]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    """Help with an example, and --json."""
    help_text = invoked([*path, "--help"], env={"COLUMNS": "200"}).output
    assert "Example: tidelog " + " ".join(path) in help_text
    assert "--json" in help_text


class Broker:
    """Answers like a broker's administration, and records what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.tokens: list[str | None] = []
        self.answer: tuple[int, Any] = (201, {"invite": "s3cret", "expires_at": "soon"})
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                broker.requests.append((self.command, self.path, json.loads(body)))
                broker.tokens.append(self.headers["authorization"])
                status, answer = broker.answer
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker's administration."""
    broker = Broker()
    thread = threading.Thread(target=broker.server.serve_forever)
    thread.start()
    yield broker
    broker.server.shutdown()
    thread.join()
    broker.server.server_close()


def invoke(*arguments: str, **environment: str) -> str:
    """The output of a command; what it raises is raised."""
    result = invoked(list(arguments), env=environment, catch_exceptions=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_create_and_invite(broker: Broker) -> None:
    """An invite is one line that carries everything `join` needs."""
    token = {"TIDELOG_ADMIN_TOKEN": "adm"}
    assert f"tidelog mesh invite harbour --url {broker.url}" in invoke(
        "mesh", "create", "harbour", "--url", broker.url, **token
    )
    link = invoke("mesh", "invite", "harbour", "--url", broker.url, **token).strip()
    assert link == f"{broker.url}/mesh/harbour#s3cret"
    assert broker.requests == [
        ("POST", "/mesh", {"slug": "harbour"}),
        ("POST", "/mesh/harbour/invites", {}),
    ]
    assert broker.tokens == ["Bearer adm"] * 2


def test_join_makes_a_key_and_proves_it(broker: Broker, tmp_path: Path) -> None:
    """The key is the owner's alone; a repeated join uses it again."""
    link = f"{broker.url}/mesh/harbour#s3cret"
    folder = tmp_path / "alice"
    for _ in range(2):
        invoke("mesh", "join", link, "--name", "alice", "--data-dir", str(folder))
    key = read_key(folder / "key.json")
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600
    first, second = (request[2] for request in broker.requests)
    assert first == second
    assert first["member_pubkey"] == key.public_hex
    signed = join_message("harbour", "s3cret", "alice")
    assert is_signed(key.public_hex, signed, first["signature"])
    assert (folder / "daemon.toml").read_text().splitlines() == [
        'mesh = "harbour"',
        f'broker = "{broker.url}"',
    ]
    assert broker.tokens == [None, None]


@pytest.mark.parametrize(
    ("error", "advice"),
    [("invite_used", "tidelog mesh invite"), ("name_taken", "--name"), ("mesh_exists", "slug")],
)
def test_a_refusal_says_what_to_do(broker: Broker, tmp_path: Path, error: str, advice: str) -> None:
    """The broker's word is followed by the next step; the invite is not repeated."""
    broker.answer = (409, {"error": error})
    link = f"{broker.url}/mesh/harbour#s3cret"
    with pytest.raises(TidelogError) as refused:
        invoke("mesh", "join", link, "--name", "alice", "--data-dir", str(tmp_path / "a"))
    assert advice in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert not (tmp_path / "a").exists(), "a key that is nobody's is not left behind"


def test_a_join_without_a_clear_answer_keeps_its_key(broker: Broker, tmp_path: Path) -> None:
    """It may be a member's by now; and a key that was there is never removed."""
    folder = tmp_path / "a"
    link = f"{broker.url}/mesh/harbour#s3cret"
    keys = []
    for status in (500, 409):
        broker.answer = (status, {"error": "whatever"})
        with pytest.raises(TidelogError):
            invoke("mesh", "join", link, "--name", "alice", "--data-dir", str(folder))
        keys.append(read_key(folder / "key.json").public_hex)
    assert keys[0] == keys[1]


@pytest.mark.parametrize(("detail", "is_advised"), [({}, True), ({"detail": "why"}, False)])
def test_a_member_that_is_refused_needs_no_admin_token(
    broker: Broker, tmp_path: Path, detail: dict[str, str], is_advised: bool
) -> None:
    """The broker says why it refuses a member's token, and nothing of an administrator's."""
    broker.answer = (401, {"error": "unauthenticated", **detail})
    link = f"{broker.url}/mesh/harbour#s3cret"
    with pytest.raises(TidelogError, match="returned 401") as refused:
        invoke("mesh", "join", link, "--name", "alice", "--data-dir", str(tmp_path / "a"))
    assert ("TIDELOG_ADMIN_TOKEN" in str(refused.value)) == is_advised


def test_a_refusal_is_words_and_what_to_do_next(broker: Broker) -> None:
    """The error's text, not the JSON it came in."""
    broker.answer = (409, {"error": "mesh_exists", "detail": "harbour is there"})
    with pytest.raises(TidelogError) as refused:
        invoke("mesh", "create", "harbour", "--url", broker.url)
    assert str(refused.value) == (
        f"{broker.url} returned 409: mesh_exists: harbour is there. Use it, or choose another slug."
    )


def test_an_administration_refuses_in_words(broker: Broker) -> None:
    """The same of channels and sync, and of what is not JSON."""
    wanted = ("sync", "retention", "5", "--url", broker.url)
    broker.answer = (401, {"error": "send the admin token", "code": "no", "status": 401})
    with pytest.raises(TidelogError) as refused:
        invoke(*wanted)
    assert str(refused.value) == (
        f"{broker.url} returned 401: send the admin token. "
        "Set TIDELOG_ADMIN_TOKEN to the admin_token of that server."
    )
    broker.answer = (500, "out of order")
    with pytest.raises(TidelogError, match=r'returned 500: "out of order"\. See the log'):
        invoke(*wanted)


def test_with_json_a_refusal_is_printed_as_it_came(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard output for a program, in words on standard error."""
    broker.answer = (409, {"error": "mesh_exists"})
    words = ["tidelog", "mesh", "create", "harbour", "--url", broker.url, "--json"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert json.loads(printed.out) == {"error": "mesh_exists"}
    assert printed.err.startswith(f"tidelog: {broker.url} returned 409: mesh_exists. Use it")


@pytest.mark.parametrize("link", ["harbour", "http://host/mesh/harbour", "ftp://h/mesh/x#y"])
def test_what_is_no_invite_is_refused(link: str, tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError, match="not an invite"):
        invoke("mesh", "join", link, "--name", "alice", "--data-dir", str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("slug", ["..", ".", "Harbour", "%2e%2e", "-harbour", "a" * 64, "a\\b"])
def test_a_link_to_no_mesh_is_refused(
    slug: str, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon's directory is named after the mesh: nothing is made outside its place, or asked."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    link = f"{broker.url}/mesh/{slug}#s3cret"
    for command in (("mesh", "join", link), ("daemon", "up", "--persistent", "--invite", link)):
        with pytest.raises(ConfigError, match="not the name of a mesh") as refused:
            invoke(*command, "--name", "alice")
        assert "s3cret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert broker.requests == []


def test_a_second_broker_needs_a_directory_of_its_own(broker: Broker, tmp_path: Path) -> None:
    """Its member has another key: what is signed for one broker is worth nothing at the other."""
    folder = tmp_path / "alice"
    join = ("--name", "alice", "--data-dir", str(folder))
    invoke("mesh", "join", f"{broker.url}/mesh/harbour#s3cret", *join)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for link in ("http://other.example/mesh/harbour#s3cret", f"{broker.url}/mesh/docks#s3cret"):
        with pytest.raises(ConfigError, match=f"joined mesh harbour at {broker.url}") as refused:
            invoke("mesh", "join", link, *join)
        assert "--data-dir" in str(refused.value)
        assert "daemon.toml" in str(refused.value)
        assert "s3cret" not in str(refused.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert len(broker.requests) == 1
    again = broker.url.replace("http://", "HTTP://") + "/mesh/harbour#s3cret"
    invoke("mesh", "join", again, *join)
    assert len(broker.requests) == 2


def test_settings_without_a_broker_get_it_from_the_first_join(
    broker: Broker, tmp_path: Path
) -> None:
    """What an operator has put there stays; what cannot be read is not ignored."""
    (tmp_path / "daemon.toml").write_text("[ipc]\ntcp_port = 0\n")
    join = ("--name", "alice", "--data-dir", str(tmp_path))
    invoke("mesh", "join", f"{broker.url}/mesh/harbour#s3cret", *join)
    assert (tmp_path / "daemon.toml").read_text() == (
        f'mesh = "harbour"\nbroker = "{broker.url}"\n[ipc]\ntcp_port = 0\n'
    )
    with pytest.raises(ConfigError, match="has joined mesh harbour"):
        invoke("mesh", "join", "http://127.0.0.1:9/mesh/harbour#s3cret", *join)
    (tmp_path / "daemon.toml").write_text("mesh = ")
    with pytest.raises(ConfigError, match=r"daemon\.toml"):
        invoke("mesh", "join", f"{broker.url}/mesh/harbour#s3cret", *join)


def test_a_broker_elsewhere_needs_a_token(tmp_path: Path) -> None:
    """The development token is for this machine only."""
    with pytest.raises(ConfigError, match="TIDELOG_ADMIN_TOKEN"):
        invoke("mesh", "create", "harbour", "--url", "https://broker.example")


def test_the_service_is_hardened(tmp_path: Path) -> None:
    """--print shows the unit and changes nothing."""
    unit = invoke("daemon", "install-service", "--print", "--data-dir", str(tmp_path / "a b%"))
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=on-failure"):
        assert line in unit
    assert f'--data-dir "{tmp_path}/a b%%"' in unit
    assert "RestartPreventExitStatus=2 3 4" in unit
    as_json = invoke("daemon", "install-service", "--print", "--json", "--data-dir", "/x")
    assert "ExecStart=" in json.loads(as_json)["unit"]


@pytest.mark.parametrize("command", [("daemon", "up"), ("mesh", "topic", "create", "news")])
def test_a_directory_without_a_mesh_is_told_how_to_join(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """Nothing is looked for in it, and nothing made."""
    with pytest.raises(TidelogError, match=rf"mesh join INVITE .*--data-dir {tmp_path}/none"):
        invoke(*command, "--data-dir", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_daemon_is_found_by_itself(tmp_path: Path) -> None:
    """None, one, several: each is told apart."""
    home = {"XDG_STATE_HOME": str(tmp_path)}
    with pytest.raises(TidelogError, match="tidelog mesh join"):
        invoke("daemon", "status", **home)
    for number, name in enumerate(("harbour", "quay")):
        folder = tmp_path / "tidelog" / "mesh" / name
        folder.mkdir(parents=True)
        (folder / "key.json").touch()
        expected = "harbour/daemon.sock" if number == 0 else "harbour, quay"
        with pytest.raises(TidelogError, match=expected):
            invoke("daemon", "status", **home)


def test_fingerprint_agrees_with_the_contract() -> None:
    """Worked example 2 of mesh 2.2."""
    arguments = ("queue:thumbs", '{"job":17}', "--priority", "low", "--meta", '{"b":2,"a":1}')
    shown = json.loads(invoke("mesh", "fingerprint", *arguments, "--json"))
    assert shown["request_fingerprint"].startswith("89b684741b76390f")
    assert (shown["prefix"], shown["preimage_bytes"]) == ("89b684741b76390f", 98)
    with pytest.raises(TidelogError, match="meta_not_canonicalizable"):
        invoke("mesh", "fingerprint", "topic:a", "x", "--meta", '{"a":1,"a":2}')
