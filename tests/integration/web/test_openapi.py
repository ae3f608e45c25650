"""`/openapi.json` describes what is served, all of it and nothing else."""

import re
from pathlib import Path

import httpx
import msgspec

from support.probe.server import running_server
from tidelog.channels.front.api.routes import NOT_OFFERED
from tidelog.channels.settings import Channels
from tidelog.cli.serving import _surfaces
from tidelog.config.settings import Settings
from tidelog.playground.surface import PATH as PLAYGROUND
from tidelog.sync.settings import SyncSettings as Sync

PARAMETER = re.compile(r"\{\w+\}")


async def test_every_route_is_described_and_every_description_is_served(tmp_path: Path) -> None:
    """With all surfaces, the document has the routes that do something and no others.

    Left out are those that only say that something is not offered, and what the page of the
    playground asks its own server in development.
    """
    channels = Channels(proxy_enabled=True, proxy_token="a token of the proxy")
    sync = Sync(jwt_secret="a secret of more than thirty-two bytes")
    (tmp_path / "lake").mkdir()
    settings = Settings(dev=True, channels=channels, sync=sync, data_dir=str(tmp_path))
    mounts, extensions = _surfaces(settings)
    async with (
        running_server(tmp_path, settings=settings, mounts=mounts, extensions=extensions) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as http,
    ):
        document = (await http.get("/openapi.json")).json()
        served = {
            (route.method, route.path)
            for route in server._routes
            if not route.path.startswith(f"{PLAYGROUND}/")
        }
        described = {
            (method.upper(), path)
            for path, methods in document["paths"].items()
            for method in methods
        }
        assert described == served - {(method, path) for method, path, _ in NOT_OFFERED}
        tags = {
            operation["tags"][0]
            for each in document["paths"].values()
            for operation in each.values()
        }
        assert {"server", "channels", "sync", "mesh", "dashboard"} <= tags
        for method, path in sorted(described):
            answer = await http.request(method, PARAMETER.sub("x", path), content=b"")
            assert answer.status_code != 500, (method, path, answer.text)
            assert answer.status_code != 405, (method, path)
            if answer.status_code == 404:
                assert "there is nothing at this path" not in answer.text, (method, path)
        names = [
            operation["operationId"]
            for methods in document["paths"].values()
            for operation in methods.values()
        ]
        assert len(set(names)) == len(names)


async def test_every_reference_of_the_document_leads_somewhere(tmp_path: Path) -> None:
    """Schemas and security schemes that are named are in the document."""
    settings = Settings(dev=True)
    mounts, extensions = _surfaces(settings)
    async with (
        running_server(tmp_path, settings=settings, mounts=mounts, extensions=extensions) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        text = (await http.get("/openapi.json")).text
    document = msgspec.json.decode(text)
    schemas = set(document["components"]["schemas"])
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) == schemas
    schemes = set(document["components"]["securitySchemes"])
    used = {
        name
        for methods in document["paths"].values()
        for operation in methods.values()
        for needed in operation.get("security", ())
        for name in needed
    }
    assert used == schemes
