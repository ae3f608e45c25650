"""Who gets in, over real sockets."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from support.dashboard.feed_peer import TOKEN, desk
from tidelog.base.errors import StoreUnavailable
from tidelog.dashboard.feed import MAX_PAGES, SESSION_ENDED, TOO_MANY_PAGES
from tidelog.store.postgresql import PostgresqlStore

CHANGE = {"x-tidelog-dashboard": "1", "content-type": "application/json"}
API = (
    "state",
    "log",
    "entry/1",
    "channels",
    "messages?stream=channels/a/b",
    "versions?message=x",
    "sync",
    "mesh",
    "mesh/x",
    "outbox",
    "outbox/x",
    "pipeline",
    "search?q=x",
)


async def test_off_without_a_token(tmp_path: Path) -> None:
    """Without a token the page is refused and says how to set one; nothing else answers."""
    async with desk(tmp_path, host="127.0.0.1") as here:
        answer = await here.http.get("/dashboard")
        assert answer.status_code == 403
        assert "TIDELOG_ADMIN_TOKEN" in answer.text
        assert (await here.http.get("/dashboard/login")).status_code == 403
        for path in API:
            assert (await here.http.get(f"/dashboard/api/{path}")).status_code == 401
        with pytest.raises(InvalidStatus) as refused:
            async with here.feed():
                pass
        assert refused.value.response.status_code == 401


async def test_login_opens_everything_and_logout_closes_it(tmp_path: Path) -> None:
    """Strangers are sent to the login; the token opens the page, its JSON and its feed."""
    async with desk(tmp_path, admin_token=TOKEN) as here:
        assert (await here.http.get("/")).headers["location"] == "/dashboard"
        assert (await here.http.get("/dashboard")).headers["location"] == "/dashboard/login"
        assert "Admin token" in (await here.http.get("/dashboard/login")).text
        for path in API:
            assert (await here.http.get(f"/dashboard/api/{path}")).status_code == 401
        answer = await here.log_in()
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
        assert "SameSite=Strict" in answer.headers["set-cookie"]
        assert 'id="views"' in (await here.http.get("/dashboard")).text
        assert (await here.get("state"))["is_open"] is False
        async with here.feed() as page:
            await page.heard("hello")
            own = {**CHANGE, "origin": here.server.url}
            assert (await here.http.post("/dashboard/logout", headers=own)).status_code == 200
            assert await page.ended() == SESSION_ENDED
        assert (await here.http.get("/dashboard/api/state")).status_code == 401


async def test_every_node_accepts_a_session_until_it_is_logged_out(
    tmp_path: Path, postgresql_url: str
) -> None:
    """Whichever node a proxy chooses; a logout on one counts on the other."""
    async with (
        desk(tmp_path / "a", store=postgresql_url, admin_token=TOKEN) as one,
        desk(tmp_path / "b", store=postgresql_url, admin_token=TOKEN) as other,
    ):
        await one.log_in()
        other.http.cookies = one.http.cookies
        assert (await other.http.get("/dashboard/api/state")).status_code == 200
        async with other.feed() as page:
            await page.heard("hello")
            own = {**CHANGE, "origin": one.server.url}
            assert (await one.http.post("/dashboard/logout", headers=own)).status_code == 200
            assert await page.ended() == SESSION_ENDED


async def test_a_logout_that_was_not_told_is_repeated(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store is away the other nodes hear nothing; the next try reaches them."""

    async def away(self: PostgresqlStore, messages: object) -> list[int]:
        raise StoreUnavailable("a test")

    async with (
        desk(tmp_path / "a", store=postgresql_url, admin_token=TOKEN) as one,
        desk(tmp_path / "b", store=postgresql_url, admin_token=TOKEN) as other,
    ):
        await one.log_in()
        other.http.cookies = one.http.cookies
        own = {**CHANGE, "origin": one.server.url}
        async with other.feed() as page:
            await page.heard("hello")
            with monkeypatch.context() as patched:
                patched.setattr(PostgresqlStore, "announce", away)
                answer = await one.http.post("/dashboard/logout", headers=own)
                assert answer.status_code == 503
            assert (await other.http.get("/dashboard/api/state")).status_code == 200
            assert (await one.http.post("/dashboard/logout", headers=own)).status_code == 200
            assert await page.ended() == SESSION_ENDED


async def test_a_session_outlives_a_restart(tmp_path: Path) -> None:
    """Whoever has logged in is not asked again because somebody deployed."""
    async with desk(tmp_path, admin_token=TOKEN) as before:
        await before.log_in()
    async with desk(tmp_path, admin_token=TOKEN) as after:
        after.http.cookies = before.http.cookies
        assert (await after.http.get("/dashboard/api/state")).status_code == 200


async def test_a_session_of_another_server_opens_nothing(tmp_path: Path) -> None:
    """A cookie is worth something only for the log it was given for."""
    async with desk(tmp_path / "a", admin_token=TOKEN) as one:
        await one.log_in()
        async with desk(tmp_path / "b", admin_token=TOKEN) as other:
            other.http.cookies = one.http.cookies
            assert (await other.http.get("/dashboard/api/state")).status_code == 401


async def test_guessing_is_answered_with_a_wait(tmp_path: Path) -> None:
    """Five wrong tokens are told so, then a wrong one must wait."""
    async with desk(tmp_path, admin_token=TOKEN) as here:
        for _ in range(5):
            assert (await here.log_in("guess")).headers["location"] == "/dashboard/login?wrong"
        answer = await here.log_in("guess")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")


async def test_guessing_does_not_lock_out(tmp_path: Path) -> None:
    """The right token gets in among any number of wrong ones from its own address."""
    async with desk(tmp_path, admin_token=TOKEN) as here:
        for _ in range(20):
            assert (await here.log_in("guess")).status_code in {303, 429}
            assert (await here.log_in()).headers["location"] == "/dashboard"
        assert (await here.log_in("guess")).status_code == 429
        assert (await here.get("state"))["is_open"] is False


async def test_login_form_of_another_site_is_refused(tmp_path: Path) -> None:
    """Another site cannot log a visitor in."""
    async with desk(tmp_path, admin_token=TOKEN) as here:
        answer = await here.http.post(
            "/dashboard/login", data={"token": TOKEN}, headers={"origin": "http://evil.example"}
        )
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_development_is_open_here_only(tmp_path: Path) -> None:
    """Under --dev nobody logs in, unless the host has a name that is not this machine's."""
    async with desk(tmp_path) as here:
        assert (await here.http.get("/dashboard")).status_code == 200
        assert "playground" in (await here.http.get("/")).text
        assert (await here.get("state"))["is_open"] is True
        rebound = {"host": "evil.example:80"}
        assert (await here.http.get("/dashboard", headers=rebound)).status_code == 403
        answer = await here.http.get("/dashboard/api/state", headers=rebound)
        assert answer.status_code == 403
        with pytest.raises(InvalidStatus):
            async with here.feed(host="evil.example", origin="http://evil.example"):
                pass


async def test_feed_is_for_our_own_page(tmp_path: Path) -> None:
    """A page of another site, or one that hides where it is from, cannot follow the feed."""
    async with desk(tmp_path) as here:
        for origin in ("http://evil.example", "null", ""):
            with pytest.raises(InvalidStatus) as refused:
                async with here.feed(origin=origin):
                    pass
            assert refused.value.response.status_code == 403, origin


NOT_OURS: tuple[dict[str, str], ...] = (
    {},
    {"x-tidelog-dashboard": "1"},
    {"x-tidelog-dashboard": "1", "origin": "http://evil.example"},
    {"x-tidelog-dashboard": "1", "sec-fetch-site": "cross-site"},
)


async def test_changes_need_our_own_page(tmp_path: Path) -> None:
    """A request that changes something is refused unless our script made it."""
    async with desk(tmp_path) as here:
        for headers in NOT_OURS:
            for path in ("api/outbox/x/requeue", "api/outbox/x/drop", "logout"):
                answer = await here.http.post(
                    f"/dashboard/{path}", headers=headers, json={"id": "row"}
                )
                assert answer.status_code == 403, (path, headers)
        own = {**CHANGE, "origin": here.server.url}
        answer = await here.http.post(
            "/dashboard/api/outbox/../requeue", headers=own, json={"id": "row"}
        )
        assert answer.status_code == 404
        for name in ("x", "..", "%2e%2e", "%2Fetc"):
            url = f"{here.server.url}/dashboard/api/outbox/{name}/drop"
            answer = await here.http.post(url, headers=own, json={"id": "row"})
            assert answer.status_code in {404, 502}, name


async def test_reads_of_another_site_are_refused(tmp_path: Path) -> None:
    """Also a mere question is refused if a browser says that another site's page asks it."""
    async with desk(tmp_path) as here:
        elsewhere = {"sec-fetch-site": "cross-site"}
        answer = await here.http.get("/dashboard/api/state", headers=elsewhere)
        assert answer.status_code == 403


async def test_every_answer_is_guarded(tmp_path: Path) -> None:
    """The policy and its companions are on every kind of answer; what is private is not kept."""
    async with desk(tmp_path) as here:
        for path in (
            "",
            "/login",
            "/static/main.js",
            "/static/nothing",
            "/api/state",
            "/api/entry/x",
        ):
            headers = (await here.http.get(f"/dashboard{path}")).headers
            assert "default-src 'none'" in headers["content-security-policy"], path
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            if "static" not in path:
                assert headers["cache-control"] == "no-store"


async def test_open_pages_are_bounded(tmp_path: Path) -> None:
    """One page more than there may be is turned away, and there is room again afterwards."""
    async with desk(tmp_path) as here:
        async with AsyncExitStack() as stack:
            for _ in range(MAX_PAGES):
                page = await stack.enter_async_context(here.feed())
                await page.heard("hello")
            one_more = await stack.enter_async_context(here.feed())
            assert await one_more.ended() == TOO_MANY_PAGES
        async with here.feed() as page:
            await page.heard("hello")
