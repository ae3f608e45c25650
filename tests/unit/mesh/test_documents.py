"""docs/protocol/mesh.md and the operator's guide say what the program does: table by table."""

import ast
import hashlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import typer
from msgspec import structs

from support.cli.inside import invoked
from support.docs.markdown import Document, code
from tidelog.cli.commands import app
from tidelog.daemon.hooks import dispatch as hooks_module
from tidelog.daemon.hooks import hook_files, hook_run
from tidelog.daemon.ipc.api import Api
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.settings import DaemonSettings
from tidelog.mesh.front.openapi import MESH, OPERATIONS
from tidelog.mesh.protocol import negotiation, policy, wire
from tidelog.mesh.protocol.fingerprint import make_envelope
from tidelog.mesh.protocol.per_mesh_settings import NAMES as MESH_SETTINGS
from tidelog.mesh.settings import MeshSettings as BrokerSettings
from tidelog.mesh.upkeep.orphan_check import RULES
from tidelog.web.reader import TOO_BIG

PROTOCOL = Document("protocol/mesh.md")
GUIDE = Document("operations/mesh-outbox.md")
SOURCE = Path(__file__).parents[3] / "src/tidelog"


# Ids and fingerprints.


def test_the_worked_examples() -> None:
    """Each example of mesh 2.2 has the body hash, the length and the fingerprint it prints."""
    _, meta_rules, examples = PROTOCOL.tables("2.2")
    assert meta_rules
    columns = list(zip(*examples, strict=True))
    printed = re.findall(
        r"^\d body +(\w+)\n  joined +(\S+)\n  fingerprint (\w+)",
        PROTOCOL.blocks("2.2")[0],
        re.MULTILINE,
    )
    for (kind_ref, reply_priority, meta, body, size), (digest, joined, fingerprint) in zip(
        columns[1:], printed, strict=True
    ):
        kind, ref = code(kind_ref)
        reply = code(reply_priority.split(" / ")[0])
        priority = code(reply_priority.split(" / ")[1])
        [text] = code(body)
        envelope = make_envelope(
            destination_kind=kind,
            destination_ref=ref * 32 if "32 times" in kind_ref else ref,
            body=text.encode(),
            reply_to_id=reply[0] if reply else None,
            priority=priority[0] if priority else None,
            meta=msgspec.json.decode(code(meta)[0]) if code(meta) else None,
        )
        assert hashlib.sha256(text.encode()).hexdigest() == digest
        assert len(envelope.preimage()) == int(size)
        assert envelope.fingerprint().hex() == fingerprint
        shown = envelope.preimage().decode().replace("\0", "\u00b7").replace(digest, "<body>")
        assert shown == joined.replace("1f1f...1f", "1f" * 32)


def test_the_example_of_the_command() -> None:
    """The command of mesh 2.2 prints the fingerprint of the first example."""
    [command] = [text for text in code(PROTOCOL.section("2.2")) if text.startswith("tidelog ")]
    result = invoked(shlex.split(command)[1:])
    assert result.stdout.strip() in PROTOCOL.blocks("2.2")[0].splitlines()[2]


# The outbox.


def test_the_answers_to_a_send() -> None:
    """Mesh 3.3 is what the lookup returns, for every state and match."""
    [rows] = PROTOCOL.tables("3.3")
    seen = set()
    for state, match, status, body in rows:
        name = code(state)[0] if code(state) else None
        seen.add((name, match))
        stored = bytes(32) if match == "yes" else bytes([1]) * 32
        existing = None
        if name is not None:
            known: Any = name
            existing = policy.Existing(stored, known, "B", 1, "why")
        verdict = policy.look_up("k", bytes(32), existing)
        assert str(verdict.status) == status
        for field in code(body):
            key, _, value = field.partition(": ")
            if key in ("pending", "last_error"):
                continue
            assert key in verdict.body, (state, key)
            if value:
                assert verdict.body[key] == msgspec.json.decode(value)
    every = {(state, match) for state in policy.STATUSES for match in ("yes", "no")}
    assert seen == {(None, ""), *every}


def test_the_changes_of_state() -> None:
    """Mesh 4.1 names every transition and no other."""
    [rows] = PROTOCOL.tables("4.1")
    named = {
        (before, after)
        for start, end, _ in rows
        for before in code(start) or [""]
        for after in code(end)
    }
    assert named == {*policy.TRANSITIONS, ("", "pending")}


def test_the_meaning_of_an_answer() -> None:
    """Mesh 4.2 sends each code to the status that the worker gives it."""
    [rows] = PROTOCOL.tables("4.2")
    listed = {
        int(number): code(status)[0]
        for answer, status in rows
        for number in re.findall(r"\b[1-5]\d\d\b", answer)
    }
    for number, status in listed.items():
        assert policy.status_after(number) == status
    others = {number for number in range(400, 500) if policy.status_after(number) != "dead"}
    assert others == {number for number, status in listed.items() if status == "pending"}


def test_the_guide_has_every_state() -> None:
    """And says what to do about each."""
    [rows] = GUIDE.tables("States")
    assert [code(state)[0] for state, _, _ in rows] == list(policy.STATUSES)
    assert all(meaning and remedy for _, meaning, remedy in rows)


def test_the_guide_explains_what_kills() -> None:
    """Each error it lists makes a row dead, and is one that the broker or the worker gives."""
    [rows] = GUIDE.tables("Why a row is dead")
    for errors, _, remedy in rows:
        assert remedy
        for error in code(errors):
            number, _, word = error.partition(" ")
            if word and word != "...":
                assert policy.status_after(int(number)) == "dead"
                assert word in broker_errors()
            elif not word:
                assert error == policy.MAX_AGE_EXCEEDED


def test_the_guide_has_the_daemons_answers() -> None:
    """The words it explains are among those of mesh 3."""
    [rows] = GUIDE.tables("What callers get")
    words = {word for answer, _ in rows for word in code(answer)[1:] or code(answer)}
    conflicts = {word for word in words if word.startswith("outbox_")}
    told = {name for row in PROTOCOL.tables("3.3")[0] for name in re.findall(r"outbox_\w+", row[3])}
    assert {word.replace("outbox_*", "outbox_done") for word in conflicts} <= told


# Errors.


REFUSALS = ("refusal", "refuse", "RequestRefused", "OutboxRefused")
"""What makes an answer with an error; the second argument is its code."""


def codes_in(*folders: str) -> Iterator[str]:
    """Every error code that a refusal in these folders is made with."""
    for folder in folders:
        for file in sorted((SOURCE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or len(node.args) < 2:
                    continue
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                argument = node.args[1]
                if (
                    name in REFUSALS
                    and isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                ):
                    yield argument.value


def broker_errors() -> set[str]:
    """Every error code of the broker, those of the daemon's reading of requests among them."""
    return {*codes_in("mesh"), "idempotency_key_reused"}


@pytest.mark.parametrize("folder", ["mesh", "daemon"])
def test_every_error_is_documented(folder: str) -> None:
    """No answer has an `error` that the protocol does not name."""
    found = set(codes_in(folder))
    assert len(found) > 10
    shortened = {
        f"too_many{word}"
        for row in PROTOCOL.tables("9.4")[1]
        for word in code(row[1])
        if word.startswith("_")
    }
    named = {word for text in code(PROTOCOL.text) for word in re.findall(r"[a-z_]+", text)}
    assert found - named - shortened == set()


# The wire.


def test_the_close_codes() -> None:
    """Mesh 9.3 lists those that are sent, with the kinds of a failed negotiation."""
    [rows] = PROTOCOL.tables("9.3")
    listed = {int(row[0].split()[0]): code(row[0]) for row in rows}
    constants = {
        wire.REPLACED,
        wire.ALREADY_CONNECTED,
        wire.MALFORMED,
        wire.UNAUTHENTICATED,
        wire.NOT_A_MEMBER,
        wire.UNKNOWN_MESH,
        wire.MISDIRECTED,
        wire.TRY_AGAIN_LATER,
        TOO_BIG,
    }
    assert set(listed) == constants | set(negotiation.CLOSE_CODES.values())
    for kind, number in negotiation.CLOSE_CODES.items():
        assert listed[number] == [kind]


def test_the_frames() -> None:
    """Mesh 9.1 has every frame with its members."""
    [rows] = PROTOCOL.tables("9.1")
    documented: dict[tuple[str, str], set[str]] = {}
    for types, senders, described in rows:
        fields = re.sub(r"\([^()]*\)", "", described).partition(";")[0]
        if " / " in types:
            for kind, sender, part in zip(
                code(types), senders.split(" / "), fields.split(" / "), strict=True
            ):
                documented[kind, sender] = set(code(part))
        else:
            for kind in code(types):
                documented[kind, senders] = set(code(fields))
    for sender, frames in (("broker", wire.BrokerFrame), ("daemon", wire.TypedDaemonFrame)):
        for frame in get_args(frames):
            kind = str(frame.__struct_config__.tag)
            named = documented.pop((kind, sender))
            members = {field.encode_name for field in structs.fields(frame)}
            if kind == "deliver":
                assert named == {"claim_id"}
                named |= set(msgspec.json.decode(PROTOCOL.blocks("7.2")[0]))
            if kind == "ack":
                named |= members  # the members of the HTTP answers, mesh 6.2 and 9.4
            if kind == "topics":
                named.discard("topic")  # said of the three frames of its line together
            assert members == named, kind
    assert set(documented) == {("send", "daemon")}


def test_the_features() -> None:
    """Mesh 9.2 offers what the broker offers, in the versions that are understood."""
    [rows] = PROTOCOL.tables("9.2")
    offered = negotiation.offered(mode="retention_scoped", dedupe_retention_days=7)
    assert {code(name)[0] for name, _ in rows} == set(offered)
    for name, params in rows:
        feature = code(name)[0]
        assert f"`version` {negotiation.VERSIONS[feature]}" in params
        assert set(offered[feature]["params"]) <= set(code(params))


def routes_in(cell: str) -> Iterator[tuple[str, str]]:
    """Method and path of each route of a cell: "`PUT`, `DELETE /a`" are two, and "`/b`" is another.

    Parameters are written as `{}`, and every path as the server has it.
    """
    methods: list[str] = []
    last = folder = ""
    for text in code(cell):
        method, _, path = text.rpartition(" ")
        if path.isupper():
            methods.append(path)
        elif "/" in path:
            if method:
                last = method
                folder = path.rpartition("/")[0]
            elif path.count("/") == 1:
                path = folder + path
            for each in (*methods, last):
                yield each, _whole(path.partition("?")[0])
            methods = []


def _whole(path: str) -> str:
    if path != "/mesh" and not path.startswith(MESH):
        path = MESH + path
    return re.sub(r"\{(?!slug)\w+\}", "{}", path)


def test_the_routes() -> None:
    """Mesh 7.3 and 9.4 have every route of the broker and no other."""
    rows = [*PROTOCOL.tables("9.4")[0], *PROTOCOL.tables("7.3")[0]]
    documented = {route for row in rows for route in routes_in(row[0])}
    assert documented == {(method, _whole(path)) for method, path in OPERATIONS}


def test_the_settings_of_a_mesh() -> None:
    """The line of `POST /mesh` names each."""
    [line] = [row for row in PROTOCOL.tables("9.4")[0] if row[0].startswith("`POST /mesh`")]
    assert set(MESH_SETTINGS) <= set(code(line[2]))


def test_the_endpoints_of_the_daemon() -> None:
    """Mesh 3.2 has every path of the IPC."""
    [rows] = PROTOCOL.tables("3.2")
    documented = {text.split()[-1] for endpoint, *_ in rows for text in code(endpoint)}
    source = ast.parse((SOURCE / "daemon/ipc/api.py").read_text(encoding="utf-8"))
    served = {
        node.value
        for node in ast.walk(source)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"/v1/[a-z/]+[a-z]", node.value)
    }
    assert documented == {*served, "/v1/outbox/{id}"}
    assert Api.paths.__doc__


def test_the_hooks() -> None:
    """Mesh 8.4 has every hook, and its limits are those of the program."""
    hooks, rules = PROTOCOL.tables("8.4")
    named = {name for row in hooks for name in code(row[0])}
    assert named == {*hook_files.NAMES, "on-topic-NAME"}
    text = {name.strip("`"): rule for name, rule in rules}
    assert str(hook_run.MAX_INPUT_BYTES) in text["Input"]
    assert str(hook_run.MAX_OUTPUT_BYTES) in text["Output"]
    assert f"PATH={hook_run.PATH}" in text["Environment"]
    assert f"{hook_files.MAX_TIMEOUT_MS} ms" in text["Time"]
    assert f"{hook_run.TERMINATION_S:.0f} s" in text["Time"]
    assert text["At once"].startswith(
        f"{hooks_module.MAX_AT_ONCE}; up to {hooks_module.MAX_WAITING}"
    )
    assert hooks_module.AUDIT_NAME in text["Audit"]
    for status in (*get_args(hook_run.Status), hooks_module.DROPPED):
        assert f"`{status}`" in text["Audit"]


def test_the_orphan_rules() -> None:
    """Mesh 6.5 numbers those that are checked."""
    [rows] = PROTOCOL.tables("6.5")
    assert [int(number) for number, *_ in rows] == list(RULES)


# Settings, metrics, commands.


def documented_settings(title: str) -> dict[str, str]:
    """Name and default of each setting of a section; lines that list several are taken apart."""
    found = {}
    for names, defaults, *_ in PROTOCOL.tables(title)[0]:
        listed = [name.split()[-1] for name in code(names)]
        values = re.split(r", (?=\S)", defaults) if len(listed) > 1 else [defaults]
        for position, name in enumerate(listed):
            found[name] = values[position] if len(values) == len(listed) else ""
    return found


def number_in(text: str) -> float | None:
    """The number that a cell begins with, in whatever unit."""
    found = re.match(r"([\d ]*\d)( MiB| KiB)?", text)
    if found is None:
        return None
    unit = {" MiB": 1024**2, " KiB": 1024, None: 1}[found[2]]
    return int(found[1].replace(" ", "")) * unit


def test_the_settings_of_the_broker() -> None:
    """Mesh 10 has every setting of `[mesh]`, with its default."""
    documented = documented_settings("10.")
    fields = {field.name: field.default for field in structs.fields(BrokerSettings)}
    assert set(documented) == set(fields)
    for name, text in documented.items():
        number = number_in(text)
        if number is not None:
            assert number == fields[name], name


def test_the_settings_of_the_daemon() -> None:
    """Mesh 11 has every setting of `daemon.toml`, with its default."""
    documented = documented_settings("11.")
    fields: dict[str, Any] = {}
    for field in structs.fields(DaemonSettings):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if isinstance(default, msgspec.Struct):
            fields |= structs.asdict(default)
        else:
            fields[field.name] = default
    assert set(documented) == set(fields)
    for name, text in documented.items():
        number = number_in(text)
        if number is not None:
            assert number == fields[name], name


def test_the_metrics_of_the_daemon() -> None:
    """Mesh 13 names each that `/v1/metrics` shows."""
    metrics = DaemonMetrics()
    text = metrics.render().decode()
    served = set(re.findall(r"^# TYPE tidelog_daemon_(\w+)", text, re.MULTILINE))
    rows = PROTOCOL.tables("13.")[0]
    assert {name.partition("{")[0] for row in rows for name in code(row[0])} == served


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command below a group."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path)
        return
    for name, below in inner.items():
        yield from leaves(below, (*path, name))


def test_the_commands() -> None:
    """Mesh 5 names every command of `tidelog mesh` and `tidelog daemon`."""
    documented = set()
    for names, _ in PROTOCOL.tables("5.")[0]:
        group = ""
        for name in code(names):
            words = name.split()
            if words[0] == "tidelog":
                group, words = words[1], words[2:]
            if "--failed" not in words:
                documented.add(" ".join((group, *words)))
    commands = typer.main.get_command(app)
    assert documented == {
        path for path in leaves(commands) if path.split()[0] in ("mesh", "daemon")
    }
