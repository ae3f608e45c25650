"""`tidelog sync`: administration from the command line."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from support.cli.inside import invoked
from support.sync.admin import admin
from support.sync.peer import ADMIN_TOKEN, TREE, connected, push
from tidelog.base.errors import TidelogError


@pytest.fixture
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TIDELOG_ADMIN_TOKEN", ADMIN_TOKEN)


async def run(*arguments: str) -> str:
    """What a command prints; its error is raised."""
    result = await asyncio.to_thread(invoked, ["sync", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout.strip()


@pytest.mark.usefixtures("_clean")
async def test_the_commands_do_what_the_routes_do(tmp_path: Path) -> None:
    """model-version, connections, snapshot and retention, for people and as JSON."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "client-a", TREE) as peer,
    ):
        url = ("--url", administrator.node.server.url)
        await peer.submit(push("1", "a"), push("2", "b"))
        await peer.subscribe("p")
        assert await run("model-version", *url) == "3"
        assert await run("model-version", "4", *url) == "3 -> 4"
        assert json.loads(await run("model-version", "--json", *url)) == {"model_version": 4}
        table = await run("connections", *url)
        assert "client-a" in table
        assert TREE in table
        listed = json.loads(await run("connections", "--json", *url))
        assert listed == await administrator.ok("GET", "connections")
        assert await run("snapshot", "p", *url) == "p stored as of 2"
        assert "no events yet; is its name right?" in await run("snapshot", "p8", *url)
        assert await run("retention", "1", *url) == "1 events archived"
        assert json.loads(await run("retention", "9", "--json", *url)) == {"archived": 1}


@pytest.mark.usefixtures("_clean")
async def test_names_of_clients_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """A partition that looks like markup or moves the cursor does neither in the table."""
    hostile = "[/x]\x1b]52;c;aGk=\x07\u202e"
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "client-a", TREE) as peer,
    ):
        await peer.subscribe(hostile)
        table = await run("connections", "--url", administrator.node.server.url)
    assert "[/x]" in table
    assert not {"\x1b", "\x07", "\u202e"} & set(table)


@pytest.mark.usefixtures("_clean")
async def test_a_command_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server, a wrong token, no token and a refusal each have their own message."""
    async with admin(tmp_path) as administrator:
        url = administrator.node.server.url
        with pytest.raises(TidelogError, match=r"returned 400: .*partition"):
            await run("snapshot", "", "--url", url)
        monkeypatch.setenv("TIDELOG_ADMIN_TOKEN", "wrong")
        with pytest.raises(TidelogError, match="returned 401"):
            await run("connections", "--url", url)
        monkeypatch.delenv("TIDELOG_ADMIN_TOKEN")
        with pytest.raises(TidelogError, match="returned 401"):  # it is not in development mode
            await run("connections", "--url", url)
        with pytest.raises(TidelogError, match="TIDELOG_ADMIN_TOKEN"):
            await run("connections", "--url", "http://server.example")
    monkeypatch.setenv("TIDELOG_ADMIN_TOKEN", ADMIN_TOKEN)
    with pytest.raises(TidelogError, match="does not answer"):
        await run("connections", "--url", url)
