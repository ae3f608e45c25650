"""The first start of `tidelog serve` by somebody who has set nothing, or not enough."""

import os
import secrets
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cli.command import run as run_command
from tidelog.testing.process import CREDENTIALS, ServerProcess

if TYPE_CHECKING:
    import subprocess


def refused(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """`tidelog serve` in an environment without settings, which is expected to end by itself."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("TIDELOG_")}
    return run_command(
        "serve", "--port", "0", *arguments, cwd=folder, env={**plain, **(environment or {})}
    )


def test_nothing_is_served_or_written_without_secrets(tmp_path: Path) -> None:
    """It exits with 2, says what to set and how, and leaves no data directory behind."""
    ended = refused(tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "admin_token is not set" in ended.stderr
    assert "no app has a secret" in ended.stderr
    assert "export TIDELOG_APP_SECRET=" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["TIDELOG_ADMIN_TOKEN", "TIDELOG_APP_SECRET"])
def test_either_secret_alone_is_not_enough(tmp_path: Path, missing: str) -> None:
    """An empty variable, as an unset one in a service file becomes, is none either."""
    ended = refused(tmp_path, environment={**CREDENTIALS, missing: ""})
    assert ended.returncode == 2
    assert "starts only when its secrets are set" in ended.stderr


def test_a_weak_secret_is_refused_and_not_shown(tmp_path: Path) -> None:
    """What the file holds is neither served nor printed."""
    weak = "hunter2hunter"
    (tmp_path / "tidelog.toml").write_text(
        f'admin_token = "{weak}"\n[[apps]]\nid = "shop"\nkey = "k"\nsecret = "change-me {weak}"\n',
        encoding="utf-8",
    )
    ended = refused(tmp_path)
    assert ended.returncode == 2
    assert "admin_token is shorter than 16 characters" in ended.stderr
    assert "the secret of app shop is an example" in ended.stderr
    assert weak not in ended.stderr + ended.stdout


def test_the_two_variables_start_a_server(tmp_path: Path) -> None:
    """Generated as the message says, they serve the app, and no log line shows either."""
    mine = {
        "TIDELOG_ADMIN_TOKEN": secrets.token_urlsafe(32),
        "TIDELOG_APP_ID": "shop",
        "TIDELOG_APP_KEY": "shop-key",
        "TIDELOG_APP_SECRET": secrets.token_urlsafe(32),
        "TIDELOG_LOG_LEVEL": "debug",
        "TIDELOG_TEST_PROBE": "0",
    }
    with ServerProcess(data_dir=tmp_path / "data", environment=mine) as server:
        server.start()
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=60) as answer:
            assert answer.status == 200
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(
                b"GET /app/shop-key?protocol=7 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n"
                b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
                b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            assert b" 101 " in client.recv(200)
        assert server.terminate() == 0
        for name in ("TIDELOG_ADMIN_TOKEN", "TIDELOG_APP_SECRET"):
            assert mine[name] not in server.log_text()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "tidelog.invalid"])
def test_development_stays_on_this_machine(tmp_path: Path, host: str) -> None:
    """A secret that everybody knows is not served to everybody, whether flag or variable asks."""
    for ended in (
        refused(tmp_path, "--dev", "--host", host),
        refused(tmp_path, "--dev", environment={"TIDELOG_HOST": host}),
    ):
        assert ended.returncode == 2
        assert "listens on this machine only" in ended.stderr
        assert host in ended.stderr


def test_development_binds_the_loopback_only(tmp_path: Path) -> None:
    """Its listening socket has the loopback's address, read from the kernel and not from us."""
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as server:
        server.start()
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = {row[1] for row in rows if row[3] == "0A"}
        port = f"{server.port:04X}"
        assert {name for name in listening if name.endswith(f":{port}")} == {f"0100007F:{port}"}
        everywhere = [row.split() for row in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
        assert not [row for row in everywhere if row[3] == "0A" and row[1].endswith(f":{port}")]
