"""`tidelog mesh` against a broker: settings, topics and queues without any other tool."""

import asyncio
import json
from pathlib import Path

import pytest

from support.cli.inside import invoked
from support.mesh.peer import ADMIN_TOKEN, Broker
from tidelog.base.errors import TidelogError

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def run(*arguments: str) -> str:
    """The output of a command; what it raises is raised."""
    environment = {"TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN}

    def invoke() -> str:
        result = invoked(["mesh", *arguments], env=environment)
        if result.exception is not None:
            raise result.exception
        return result.stdout

    return await asyncio.to_thread(invoke)


async def joined(broker: Broker, folder: Path) -> tuple[str, str]:
    """A mesh, and the directory of a member that joined it, both made by commands."""
    slug = await broker.mesh()
    link = (await run("invite", slug, "--url", broker.url)).strip()
    await run("join", link, "--name", "alice", "--data-dir", str(folder))
    return slug, str(folder)


async def test_topics_and_queues(broker: Broker, tmp_path: Path) -> None:
    """A member makes and lists them with its key alone; making one again changes nothing."""
    slug, folder = await joined(broker, tmp_path)
    place = ("--data-dir", folder)
    first = await run("topic", "create", "alerts/\u6771\u4eac", *place)
    again = await run("topic", "create", "alerts/\u6771\u4eac", *place)
    assert "tidelog daemon subscribe alerts/\u6771\u4eac" in first
    assert "was there already" in again
    await run("queue", "create", "thumbs", *place)
    assert await run("topic", "list", *place) == "alerts/\u6771\u4eac\n"
    assert await run("queue", "list", *place) == "thumbs\n"
    assert json.loads(await run("queue", "list", *place, "--json")) == {"queues": ["thumbs"]}
    query = f"SELECT t.name FROM {{}} t JOIN {{}} m ON m.id = t.mesh_id WHERE m.slug = '{slug}'"
    assert await broker.rows(query, "topic", "mesh") == [("alerts/\u6771\u4eac",)]


async def test_topics_and_queues_are_deleted(broker: Broker, tmp_path: Path) -> None:
    """By the member that made them, or by an administrator who names the mesh."""
    slug, folder = await joined(broker, tmp_path)
    place, admin = ("--data-dir", folder), ("--admin-of", slug, "--url", broker.url)
    for kind in ("topic", "queue"):
        for name in ("a/b", "c"):
            await run(kind, "create", name, *place)
        assert await run(kind, "delete", "a/b", *place) == f"{kind} a/b is deleted\n"
        answer = await run(kind, "delete", "c", *admin, "--json")
        assert json.loads(answer) == {kind: "c", "removed": True}
        assert await run(kind, "list", *place) == ""
        with pytest.raises(TidelogError, match=f"{kind}_not_found.*tidelog mesh {kind} list"):
            await run(kind, "delete", "c", *place)


async def test_invites_are_taken_back(broker: Broker, tmp_path: Path) -> None:
    """By their id or by the link itself."""
    slug = await broker.mesh()
    place = ("--url", broker.url)
    links = [(await run("invite", slug, *place)).strip() for _ in range(2)]
    listed = json.loads(await run("invites", "list", slug, *place, "--json"))["invites"]
    assert await run("invites", "list", slug, *place) == "".join(
        f"{each['id']} until {each['expires_at']}\n" for each in listed
    )
    assert "is deleted" in await run("invites", "delete", slug, links[0], *place)
    left = json.loads(await run("invites", "list", slug, *place, "--json"))["invites"]
    await run("invites", "delete", slug, left[0]["id"], *place, "--json")
    assert (len(listed), len(left)) == (2, 1)
    assert await run("invites", "list", slug, *place) == ""
    for link in links:
        with pytest.raises(TidelogError, match=r"invite_not_found.*tidelog mesh invites list"):
            await run("invites", "delete", slug, link, *place)
        with pytest.raises(TidelogError, match="invite_invalid"):
            await run("join", link, "--name", "alice", "--data-dir", str(tmp_path / "alice"))


async def test_a_revoked_member_makes_nothing(broker: Broker, tmp_path: Path) -> None:
    """The broker's refusal is the command's."""
    slug, folder = await joined(broker, tmp_path)
    key = json.loads((tmp_path / "key.json").read_text())["public_key"]
    await broker.admin("DELETE", f"/mesh/{slug}/members/{key}")
    with pytest.raises(TidelogError, match="not_a_member"):
        await run("topic", "create", "alerts", "--data-dir", folder)


async def test_settings(broker: Broker) -> None:
    """Shown, changed, and set back to for ever."""
    slug = await broker.mesh()
    place = ("--url", broker.url)
    assert "rate_limit: 6000" in await run("settings", slug, *place)
    changes = ("--rate-limit", "5", "--message-retention-days", "30", "--echo-to-sender")
    changed = json.loads(await run("settings", slug, *changes, *place, "--json"))
    assert (changed["rate_limit"], changed["message_retention_days"]) == (5, 30)
    assert changed["echo_to_sender"] is True
    back = await run("settings", slug, "--message-retention-days", "0", *place)
    assert "message_retention_days: null" in back
    with pytest.raises(TidelogError, match="from 7 to"):
        await run("settings", slug, "--dedupe-retention-days", "6", *place)
