"""docs/protocol/channels.md says what the program does: table by table."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import structs

from support.markdown import Document, code
from tidelog.channels import settings
from tidelog.channels.front.api.openapi import OPERATIONS
from tidelog.channels.protocol import capabilities, fault, query, session, wire
from tidelog.channels.protocol.extras import TRANSPORT_STATUSES
from tidelog.channels.protocol.verbs import MUTATION_VERBS

PROTOCOL = Document("protocol/channels.md")


def words(title: str) -> set[str]:
    """Every word that a section writes as code."""
    found = code(PROTOCOL.section(title))
    return {word for text in found for word in re.findall(r"[\w-]+", text)}


def test_the_codes_of_error_frames() -> None:
    """Channels 1.5 lists those that are sent."""
    [rows] = PROTOCOL.tables("1.5")
    listed = {int(number) for row in rows for number in re.findall(r"\d{4}", row[0])}
    sent = {
        value
        for name, value in vars(wire).items()
        if name.isupper() and isinstance(value, int) and 4000 <= value < 5000
    }
    assert listed == sent
    assert set(session.MESSAGES) <= listed


def test_the_errors_of_the_http_api() -> None:
    """Channels 8.2 has the status and the code of every refusal."""
    [rows] = PROTOCOL.tables("8.2")
    listed = {(int(row[0]), name) for row in rows for name in code(row[1])}
    made = [
        fault.feature_disabled("c", "s"),
        fault.not_found("s", "c"),
        fault.app_not_found("k"),
        fault.invalid_input("e"),
        fault.invalid_transport_header("e"),
        fault.missing_channel_info(),
        fault.limit_exceeded("e"),
        fault.payload_too_large("e"),
        fault.auth_failed("e"),
        fault.rate_limited(1),
        fault.backpressure(),
        fault.service_unavailable(),
        fault.internal_error(),
    ]
    assert listed == {(refused.status, refused.code) for refused in made}


def test_the_reasons_of_a_failed_resume() -> None:
    """Channels 6.4 has every code."""
    [rows] = PROTOCOL.tables("6.4")
    assert [code(row[0])[0] for row in rows] == list(get_args(wire.FailureCode))
    assert {field.encode_name for field in structs.fields(wire.Failed)} <= words("6.4")


def sections(section: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Name and default of each setting, also of the sections inside."""
    for field in structs.fields(section):
        default = field.default
        if isinstance(default, msgspec.Struct):
            yield from sections(type(default))
        elif field.default_factory is msgspec.NODEFAULT:
            yield field.name, default


NOT_LIMITS = {"proxy_enabled", "proxy_token"}
"""They are about the helper of channels 9.2."""


def test_the_limits() -> None:
    """Channels 8.1 has every setting, and the numbers it gives are the defaults."""
    rows = PROTOCOL.tables("8.1")[0]
    told: dict[str, list[str]] = {}
    for names, defaults, *_ in rows:
        listed = [name.split()[-1] for name in code(names)]
        values = re.split(r", (?=\S)", defaults) if len(listed) > 1 else [defaults]
        for name, value in zip(listed, values, strict=False):
            told.setdefault(name, []).append(value)
    units = {" KiB": 1024, " MiB": 1024**2, None: 1}
    for name, default in sections(settings.Channels):
        if name in NOT_LIMITS:
            continue
        assert name in told, name
        if isinstance(default, bool):
            assert str(default).lower() in told[name], name
            continue
        numbers = [re.match(r"([\d ]*\d)( MiB| KiB)?", value) for value in told[name]]
        known = {int(found[1].replace(" ", "")) * units[found[2]] for found in numbers if found}
        assert default in known, name


def test_the_operations_of_capabilities() -> None:
    """Channels 7.1 names those of one verb, and the other verbs."""
    named = words("7.1")
    for operation in capabilities.OPERATIONS:
        assert re.sub("|".join(MUTATION_VERBS), "update", operation) in named
    assert {*MUTATION_VERBS} - {"update"} <= named


def documented_ends() -> set[str]:
    """How the paths on the page end: `/events`, `channels/{channel}`; without their queries."""
    found = set()
    for text in code(PROTOCOL.text):
        _, _, path = re.sub(r"{([a-z|]+\|[a-z|]+)}", r"(\1)", text).partition("/")
        *folders, last = path.partition("?")[0].split("/")
        if not last.startswith("("):
            found.add(end_of([*folders, last]))
        else:
            found |= {f"/{action}" for action in last.strip("()").split("|")}
    return found


def end_of(parts: list[str]) -> str:
    """What tells a path from the others: its last word, with the one before if it is a name."""
    return "/".join(parts[-2:]) if parts[-1].startswith("{") else f"/{parts[-1]}"


@pytest.mark.parametrize("path", sorted({path for _, path in OPERATIONS}))
def test_the_routes(path: str) -> None:
    """Each is on the page."""
    assert end_of(path.split("/")) in documented_ends()


def test_the_spellings_of_a_query() -> None:
    """Channels 6.1 has every direction; 5.5 every status of a stream."""
    assert query.DIRECTIONS.keys() <= words("6.1")
    assert words("5.5") >= TRANSPORT_STATUSES
