"""`/tidelog.js`: every server serves the client for pages, to pages of every origin."""

import gzip
from pathlib import Path

import httpx
import pytest

from support.probe.server import running_server
from tidelog.config.settings import Settings

SOURCE = Path(__file__).parents[3] / "clients" / "js" / "tidelog.js"


async def test_the_module_is_served_to_every_origin(tmp_path: Path) -> None:
    """Its bytes, its type, plain or compressed, and leave for pages of others to import it."""
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        plain = await http.get("/tidelog.js", headers={"accept-encoding": "identity"})
        assert plain.status_code == 200
        assert plain.content == SOURCE.read_bytes()
        assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
        assert plain.headers["access-control-allow-origin"] == "*"
        assert plain.headers["cross-origin-resource-policy"] == "cross-origin"
        assert plain.headers["x-content-type-options"] == "nosniff"
        assert plain.headers["vary"] == "accept-encoding"
        assert "content-encoding" not in plain.headers
        async with http.stream(
            "GET", "/tidelog.js", headers={"accept-encoding": "br, gzip"}
        ) as sent:
            packed = b"".join([chunk async for chunk in sent.aiter_raw()])
        assert sent.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed) == plain.content
        assert len(packed) < len(plain.content) / 2
        assert (await http.head("/tidelog.js")).content == b""


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [("gzip", True), ("GZIP;q=0.5, br", True), ("gzip;q=0", False), ("gzip; q=0.0", False)],
)
async def test_compression_is_what_the_browser_takes(
    tmp_path: Path, accepted: str, *, is_packed: bool
) -> None:
    """A quality of 0 means no."""
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        response = await http.get("/tidelog.js", headers={"accept-encoding": accepted})
        assert ("content-encoding" in response.headers) == is_packed
        assert response.content == SOURCE.read_bytes()


async def test_a_page_that_has_it_is_told_so(tmp_path: Path) -> None:
    """Each form has a tag of its own, and every load asks again."""
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        tags = set()
        for encoding in ("identity", "gzip"):
            first = await http.get("/tidelog.js", headers={"accept-encoding": encoding})
            assert first.headers["cache-control"] == "no-cache"
            tags.add(tag := first.headers["etag"])
            for known in (tag, f"W/{tag}", f'"other", {tag}'):
                again = await http.get(
                    "/tidelog.js", headers={"accept-encoding": encoding, "if-none-match": known}
                )
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == tag
            other = {"accept-encoding": encoding, "if-none-match": '"other"'}
            assert (await http.get("/tidelog.js", headers=other)).status_code == 200
        assert len(tags) == 2


async def test_development_mode_serves_it_to_this_machines_pages(tmp_path: Path) -> None:
    """A page of another port of this machine may import it; a stranger's gets nothing here."""
    settings = Settings(dev=True, data_dir=str(tmp_path))
    async with (
        running_server(tmp_path, settings=settings) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        ours = await http.get("/tidelog.js", headers={"origin": "http://localhost:5173"})
        assert ours.status_code == 200
        strange = await http.get("/tidelog.js", headers={"origin": "https://stranger.example"})
        assert strange.status_code == 403
