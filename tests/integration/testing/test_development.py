"""`tidelog serve --dev`: what it opens, and to whom."""

import asyncio
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx

from support.channels.peer import Api, message_path
from support.cli.command import tidelog
from tidelog.config.settings import DEVELOPMENT_APP
from tidelog.testing.process import ServerProcess


def test_development_serves_the_known_app_and_says_so(tmp_path: Path) -> None:
    """The development app answers, its messages can change, and the log says it loudly."""
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as server:
        server.start()
        assert (
            "DEVELOPMENT MODE: everybody knows app app-id / app-key / app-secret, the admin token "
            "dev-admin-token, the secret of sync's tokens (everybody knows this development "
            "secret); never expose this port"
        ) in server.log_text()
    with ServerProcess(data_dir=tmp_path / "other") as server:
        server.start()
        assert "DEVELOPMENT MODE" not in server.log_text()


def test_development_announces_only_what_is_public(tmp_path: Path) -> None:
    """A secret of one's own is not shown, also where it takes the known one's place."""
    own = {
        "TIDELOG_ADMIN_TOKEN": "gull-over-the-quay-7",
        "TIDELOG_APP_ID": "app-id",
        "TIDELOG_APP_SECRET": "lantern-on-the-mole-9",
        "TIDELOG_SYNC_JWT_SECRET": "k3eP-4t3-tide-0ut-of-h4rbour-walls",
    }
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",), environment=own) as server:
        server.start()
        text = server.log_text() + httpx.get(f"{server.url}/playground/server", verify=False).text
    assert "DEVELOPMENT MODE" in text
    assert "The secret of app.secret (TIDELOG_APP_SECRET) is that of app app-id / main-key" in text
    assert "dev-admin-token" not in text
    assert "app-secret" not in text
    assert "development secret" not in text
    assert not any(secret in text for secret in ("gull-over", "lantern-on", "walls"))


def test_development_overrides_no_explicit_setting(tmp_path: Path) -> None:
    """Whoever says that messages cannot change is believed, also under --dev."""
    off = {"TIDELOG_CHANNELS_VERSIONED_MESSAGES_ENABLED": "false"}
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",), environment=off) as server:
        server.start()
        reason = asyncio.run(_refused_update(server.url))
    assert "channels.versioned_messages.enabled" in reason


async def _refused_update(url: str) -> str:
    async with httpx.AsyncClient(verify=False) as http:
        api = Api(url, http, DEVELOPMENT_APP)
        answer = await api.post(f"{message_path('room', 'any')}/update", {"data": "new"})
    assert answer.status_code >= 400
    return answer.text


def test_a_refused_page_is_explained_on_the_terminal(tmp_path: Path) -> None:
    """The browser shows its author only that it failed."""
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as server:
        server.start()
        assert asked(server, "GET", "/healthz", {"Origin": "https://page.example"}) == 403
        text = server.log_text()
    assert "refused a page of https://page.example" in text
    assert "http://localhost:PORT" in text


ELSEWHERE = {"Host": "rebound.example:8080"}, {"Origin": "https://page.example"}
HERE = {"Host": "localhost:1"}, {"Origin": "http://localhost:3000"}, {"Origin": "http://[::1]"}


def asked(server: ServerProcess, method: str, path: str, headers: dict[str, str]) -> int:
    """The status of an answer."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    with closing(connection):
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


def test_development_answers_only_this_machine(tmp_path: Path) -> None:
    """Neither a page of another site nor a name that leads here by a trick gets anything."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    opened = f"/app/{DEVELOPMENT_APP.key}"
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as server:
        server.start()
        for headers in ELSEWHERE:
            assert asked(server, "GET", "/healthz", headers) == 403
            assert asked(server, "POST", "/mesh", headers) == 403
            assert asked(server, "GET", opened, headers | upgrade) == 403
        for headers in (*HERE, {}):
            assert asked(server, "GET", "/healthz", headers) == 200
            assert asked(server, "POST", "/mesh", headers) == 401
            assert asked(server, "GET", opened, headers | upgrade) == 101
        nowhere = {"Origin": "null"}  # a file, or a framed page of anybody
        stream = "/apps/app-id/channels/room/stream"  # which a page could read, as a socket
        assert asked(server, "GET", stream, nowhere) == 403
        assert asked(server, "GET", stream, {"Origin": "http://localhost:3000"}) == 400
        assert asked(server, "GET", "/healthz", nowhere) == 200
        assert asked(server, "POST", "/mesh", nowhere) == 403
        assert asked(server, "GET", opened, nowhere | upgrade) == 403


def test_the_known_token_administers_sync_too(tmp_path: Path) -> None:
    """As it does meshes; the commands know it, so that nobody has to set one to try them."""
    environment = {"TIDELOG_SYNC_JWT_SECRET": "k3eP-4t3-tide-0ut-of-h4rbour-walls"}
    with ServerProcess(
        data_dir=tmp_path / "data", arguments=("--dev",), environment=environment
    ) as server:
        server.start()
        told = asyncio.run(tidelog("sync", "model-version", "--url", server.url))
        assert told == {"model_version": 1}
