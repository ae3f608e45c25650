"""Every HTTP route, from the `/openapi.json` of a server that serves everything."""

import json
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scripts.generation.markdown import NOTE, code, joined, table

from tidelog.testing.process import ServerProcess

INTRODUCTION = """\
Every server returns an OpenAPI 3.1 document of the routes it serves at `GET /openapi.json`.
This page is made from a server that serves all surfaces; the whole document, with all schemas, is
{download}`openapi.json`. The protocols say what the routes mean together:
[channels](../protocol/channels.md), [sync](../protocol/sync.md), [mesh](../protocol/mesh.md)."""

ABOUT = {
    "server": "The server itself.",
    "channels": "Signed as [the protocol](../protocol/channels.md) says.",
    "sync": "With the bearer token of a client. WebSocket is the other way.",
    "mesh": "For members, and for administration with the admin token.",
}

SETTINGS = """\
[sync]
jwt_secret = "only for this page: no server is reached by it"
[channels]
proxy_enabled = true
proxy_token = "only for this page"
"""
WAIT_SECONDS = 10.0


@cache
def described() -> dict[str, Any]:
    """The document of a real server with every surface on it."""
    with tempfile.TemporaryDirectory(prefix="tidelog-docs-") as name:
        folder = Path(name)
        (folder / "lake").mkdir()  # so that it serves searches
        config = folder / "tidelog.toml"
        config.write_text(SETTINGS, encoding="utf-8")
        with ServerProcess(
            data_dir=folder,
            arguments=("--dev", "--config", str(config)),
            environment={"TIDELOG_TEST_PROBE": "0"},  # if a test runs this
        ) as server:
            server.start()
            with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=WAIT_SECONDS) as got:
                answer: dict[str, Any] = json.load(got)
                return answer


def document() -> str:
    """The document itself, for tools."""
    return json.dumps(described(), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """The page of all routes."""
    whole = described()
    by_tag: dict[str, list[str]] = {}
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            [tag] = operation["tags"]
            section = joined(_operation(method.upper(), path, operation, whole)).rstrip("\n")
            by_tag.setdefault(tag, []).append(section)
    parts = [NOTE, "# HTTP", INTRODUCTION, *_security(whole)]
    for tag, sections in by_tag.items():
        parts += [f"## {tag.capitalize()}", ABOUT.get(tag, ""), *sections]
    return joined(parts)


def _security(described: Mapping[str, Any]) -> Iterator[str]:
    schemes = described["components"]["securitySchemes"]
    yield "## Who may call"
    yield table(
        ("scheme", "how"),
        [(code(name), scheme.get("description", "")) for name, scheme in schemes.items()],
    )


def _operation(
    method: str, path: str, operation: Mapping[str, Any], described: Mapping[str, Any]
) -> Iterator[str]:
    yield f"### {code(f'{method} {path}')}"
    schemes = [code(name) for needed in operation.get("security", []) for name in needed]
    yield operation["summary"] + (f" Needs {', '.join(schemes)}." if schemes else "")
    rows = [
        (
            code(parameter["name"]),
            parameter["in"] + (", required" if parameter["required"] else ""),
            code(_kind(parameter["schema"])),
            parameter.get("description", ""),
        )
        for parameter in operation["parameters"]
        if parameter["in"] != "path"
    ]
    if rows:
        yield table(("parameter", "in", "type", "meaning"), rows)
    if body := operation.get("requestBody"):
        [content] = body["content"].values()
        yield from _fields("Body", content["schema"], described)
    for status, response in operation["responses"].items():
        if status != "default":
            [(media_type, content)] = response["content"].items()
            title = f"Response {status}, {code(media_type)}"
            yield from _fields(title, content["schema"], described)


def _fields(title: str, schema: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[str]:
    whole = _resolved(schema, described)
    if whole.get("type") != "object" or not whole.get("properties"):
        yield f"{title}: {code(_kind(schema))}."
        return
    required = whole.get("required", [])
    fields = [
        f"{code(name)} ({_kind(inner)}{', required' if name in required else ''})"
        for name, inner in whole["properties"].items()
    ]
    yield f"{title}: {', '.join(fields)}."


def _resolved(schema: Mapping[str, Any], described: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if not reference:
        return schema
    found: Mapping[str, Any] = described["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a word or two."""
    if reference := schema.get("$ref"):
        return str(reference.rpartition("/")[2])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(option) for option in options))
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
