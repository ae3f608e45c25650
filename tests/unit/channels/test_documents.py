"""docs/protocol/channels.md and docs/protocol/runs.md say what the program does: table by table."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import structs

from support.docs.markdown import Document, code
from tidelog.channels import settings
from tidelog.channels.front.api.openapi import OPERATIONS
from tidelog.channels.protocol import capabilities, fault, query, runs, session, wire
from tidelog.channels.protocol.extras import TRANSPORT_STATUSES
from tidelog.channels.protocol.verbs import MUTATION_VERBS, VERBS, kind_of
from tidelog.web.handshake import CODES, UNAVAILABLE

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


RUN_FAULTS = (
    fault.invalid_transport_header("e"),
    fault.header_too_large("e"),
    fault.client_id_spoof("e"),
    fault.event_not_permitted("e"),
    fault.rollup_window_invalid("e"),
)


def test_the_errors_of_the_http_api() -> None:
    """Channels 8.2 has the status and the code of every refusal."""
    [rows] = PROTOCOL.tables("8.2")
    listed = {(int(row[0]), name) for row in rows for name in code(row[1])}
    made = [
        fault.feature_disabled("c", "s"),
        fault.not_found("s", "c"),
        fault.app_not_found("k"),
        fault.invalid_input("e"),
        *RUN_FAULTS,
        fault.missing_channel_info(),
        fault.limit_exceeded("e"),
        fault.payload_too_large("e"),
        fault.auth_failed("e"),
        fault.rate_limited(1),
    ]
    web = {(500, CODES[500]), (503, CODES[503]), (503, UNAVAILABLE)}
    assert listed == {(refused.status, refused.code) for refused in made} | web


def test_runs() -> None:
    """The page has every event, key, domain, limit and error, and no other."""
    page = Document("protocol/runs.md")
    [events, _] = page.tables("2.")
    clients = {name for row in events if "sockets" in row[1] for name in code(row[0])}
    agents = {name for row in events if "sockets" not in row[1] for name in code(row[0])}
    assert clients == runs.CLIENT_EVENTS
    assert agents == runs.AGENT_EVENTS
    [keys] = page.tables("4.2")
    assert {name for row in keys for name in code(row[0])} == runs.TRANSPORT_KEYS
    for row in keys:
        for value in code(row[1]):
            runs.check_metadata({code(row[0])[0]: value}, {})
    [errors] = page.tables("8.")
    listed = {(int(row[0]), code(row[1])[0], int(row[2])) for row in errors}
    assert listed == {(made.status, made.code, made.ai_code) for made in RUN_FAULTS}


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
        assert name in told, f"channels 8.1 has no row for {name}, which is {default} by default"
        wrong = f"channels 8.1 says {told[name]} for {name}; the default is {default}"
        if isinstance(default, bool):
            assert str(default).lower() in told[name], wrong
            continue
        numbers = [re.match(r"([\d ]*\d)( MiB| KiB)?", value) for value in told[name]]
        known = {int(found[1].replace(" ", "")) * units[found[2]] for found in numbers if found}
        assert default in known, wrong


def test_the_actions() -> None:
    """Channels 5.1 has the kind and the frame of each, and 5.9 what each frame has as data."""
    [rows] = PROTOCOL.tables("5.1")
    told = {name: code(kind) + code(event) for name, kind, event, *_ in rows if name != "summary"}
    made = {verb: [kind_of(verb), f"sockudo:{kind_of(verb)}"] for verb in VERBS}
    made["create"].pop()  # its frame has the published name
    assert told == made, "channels 5.1 needs a row for each verb of channels/protocol/verbs.py"
    [rows] = PROTOCOL.tables("5.9")
    shown = {row[0].partition(",")[0] for row in rows}
    assert shown == {*MUTATION_VERBS}, "channels 5.9 says what data the frame of each change has"


def test_the_operations_of_capabilities() -> None:
    """Channels 7.1 names those of one verb, and the other verbs."""
    named = words("7.1")
    for operation in capabilities.OPERATIONS:
        written = re.sub("|".join(MUTATION_VERBS), "update", operation)
        assert written in named, f"channels 7.1 does not name the capability {written}"
    missing = {*MUTATION_VERBS} - {"update"} - named
    assert not missing, f"channels 7.1 does not name {missing}: `message_{{verb}}_own` and `_any`"


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
    end = end_of(path.split("/"))
    assert end in documented_ends(), f"no path on docs/protocol/channels.md ends with {end}"


def test_the_spellings_of_a_query() -> None:
    """Channels 6.1 has every direction; 5.5 every status of a stream."""
    assert query.DIRECTIONS.keys() <= words("6.1")
    assert words("5.5") >= TRANSPORT_STATUSES
