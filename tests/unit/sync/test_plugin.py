"""The application's own rules: what is loaded, what it is asked, what becomes of its answers."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest

from support.sync.application import compute
from tidelog.base.errors import ConfigError
from tidelog.base.metrics import Metrics
from tidelog.sync.decide import plugin_guard
from tidelog.sync.decide.plugin_guard import FAILED, TOO_SLOW, Clocks, GuardedPlugin
from tidelog.sync.metrics import SyncMetrics
from tidelog.sync.plugin import Event, Identity, Plugin, State, load_plugin
from tidelog.sync.protocol.actions import Action, Connected, Send, Submit, Sync
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.items import PreparedItem
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.protocol.session import Session
from tidelog.sync.protocol.tokens import Tokens
from tidelog.sync.protocol.tree import TreeState
from tidelog.sync.settings import SyncSettings

SECRET = "a secret of more than thirty-two bytes"
MODEL = Model.parse(
    {
        "t": {"kind": "tree", "actions": ["set", "treePush", "treeMove"]},
        "v": {"kind": "value", "actions": ["set"]},
    },
    {"any": True},
    1,
)


class Partition:
    """A partition's state without a cache around it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree = TreeState(MODEL)


REAL = Clocks(time.perf_counter, time.thread_time)


def guarded(
    plugin: Plugin, budget_ms: int = 1000, clocks: Clocks = REAL
) -> tuple[GuardedPlugin, Metrics]:
    """A plug-in in its guard, and where that counts."""
    metrics = Metrics()
    return GuardedPlugin(plugin, "my:Rules", budget_ms, metrics.part(SyncMetrics), clocks), metrics


def failures(metrics: Metrics) -> dict[tuple[str, str], float]:
    """How often what went wrong."""
    return {
        (sample.labels["method"], sample.labels["reason"]): sample.value
        for family in metrics.part(SyncMetrics).plugin_failures.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


class Client:
    """A session of a client in the event profile."""

    def __init__(self, plugin: GuardedPlugin | None, profile: str = "canonical", **claims: Any):
        tokens = Tokens(SECRET, None, ["HS256"])
        self.session = Session(SyncSettings(jwt_secret=SECRET), MODEL, tokens, 0.0, plugin)
        whole = {"client_id": "c", "exp": time.time() + 60, "allowed_partition_prefixes": ["p"]}
        token = jwt.encode({**whole, **claims}, SECRET, "HS256")
        connect = {"token": token, "client_id": "c", "supported_profiles": [profile]}
        [action] = self.send("connect", connect)
        assert isinstance(action, Connected)
        self.session.done(0.0, 0.0)

    def send(self, kind: str, payload: object) -> list[Action]:
        """A message comes."""
        message = {"type": kind, "msg_id": "m", "timestamp": 1, "payload": payload}
        frame = json.dumps({**message, "protocol_version": "1.0"}).encode()
        return self.session.receive(frame, is_text=True, now=0.0, unix_now=0.0)

    def submit(self, *partitions: str, data: object = 1, schema: str = "any") -> PreparedItem:
        """What a submit of one event comes to before its decision."""
        event = {"type": "event", "payload": {"schema": schema, "data": data}}
        item = {"id": "i", "partitions": partitions, "event": event}
        [action] = self.send("submit_events", {"events": [item]})
        assert isinstance(action, Submit)
        self.session.done(0.0, 0.0)
        return action.items[0]


# Authorization.


class Picky(Plugin):
    """Says no to some names, and remembers nothing but what a test wants to know."""

    def __init__(self) -> None:
        self.asked: list[tuple[Identity, str, str]] = []

    def authorize(self, identity: Identity, partition: str, access: str) -> bool:
        """Writing needs a role, `p-no` is for nobody."""
        self.asked.append((identity, partition, access))
        return partition != "p-no" and (access == "read" or identity.claims.get("role") == "w")


def test_submit_needs_the_token_and_the_plugin() -> None:
    """Each denied partition is named by its place, whoever denies it (sync D18, D26)."""
    plugin = Picky()
    client = Client(guarded(plugin)[0], role="w")
    assert client.submit("p").refused is None
    denied = client.submit("q", "p", "p-no").refused
    assert denied == (
        "forbidden",
        (Fault("partitions.0", "not allowed"), Fault("partitions.2", "not allowed")),
    )
    assert [(name, access) for _, name, access in plugin.asked] == [
        ("p", "write"),
        ("p", "write"),
        ("p-no", "write"),
    ], "what the token does not open is not asked"
    assert plugin.asked[0][0].client_id == "c"
    reader = Client(guarded(plugin)[0])
    assert reader.submit("p").refused == ("forbidden", (Fault("partitions.0", "not allowed"),))


def test_sync_needs_the_token_and_the_plugin() -> None:
    """Names to read and to subscribe to are authorized alike, the denied ones listed (sync D19)."""
    client = Client(guarded(Picky())[0])
    [allowed] = client.send("sync", {"partitions": ["p"], "since_committed_id": 0})
    assert isinstance(allowed, Sync)
    client.session.done(0.0, 0.0)
    payload = {"partitions": ["p", "q"], "since_committed_id": 0}
    [refused] = client.send("sync", {**payload, "subscription_partitions": ["p-no"]})
    assert isinstance(refused, Send)
    error = json.loads(refused.payload)
    assert (error["code"], error["details"]["partitions"]) == ("forbidden", ["p-no", "q"])


@pytest.mark.parametrize("answer", ["yes", None, 1, RuntimeError("no idea")])
def test_an_authorizer_without_an_answer_denies(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception and whatever is no bool is a no; it is counted, and logged with the name."""

    class Odd(Plugin):
        def authorize(self, identity: Identity, partition: str, access: str) -> Any:
            del identity, partition, access
            if isinstance(answer, Exception):
                raise answer
            return answer

    guard, metrics = guarded(Odd())
    assert Client(guard).submit("p").refused == (
        "forbidden",
        (Fault("partitions.0", "not allowed"),),
    )
    assert failures(metrics) == {("authorize", "raised"): 1}
    assert "sync.plugin my:Rules: authorize failed" in caplog.text


# Rules without a state.


class Strict(Plugin):
    """Finds what it is told to find."""

    def __init__(self, *found: Any, spoils: bool = False) -> None:
        self.found = found
        self.spoils = spoils
        self.events: list[Event] = []

    def validate(self, event: Event) -> Iterator[Fault]:
        """Yields, so that it also fails only when it is asked for the next."""
        self.events.append(event)
        if self.spoils:
            event.payload.clear()
        for each in self.found:
            if isinstance(each, Exception):
                raise each
            yield each


def test_faults_of_the_application_come_along_in_their_order() -> None:
    """Sorted, each once, at the place of profile validation; not asked before that passes."""
    one, two = Fault("event.payload.data", "a"), Fault("event.payload.data", "b")
    plugin = Strict(two, one, two)
    client = Client(guarded(plugin)[0])
    item = client.submit("p", "p-2", data=[5])
    assert item.invalid == (one, two)
    assert item.refused is None
    assert not item.needs_state(), "it has failed already"
    [event] = plugin.events
    assert (event.id, event.type, event.partitions) == ("i", "event", ("p", "p-2"))
    assert event.payload == {"schema": "any", "data": [5]}
    assert client.submit("q").refused is not None
    assert client.submit("p", schema="none").invalid == (
        Fault("event.payload.schema", "unknown schema"),
    )
    assert len(plugin.events) == 1


def test_what_a_plugin_does_to_its_event_is_not_stored() -> None:
    """It is given a copy."""
    item = Client(guarded(Strict(spoils=True))[0]).submit("p", data={"a": 1})
    assert b'"data": {"a": 1}' in item.body


NO_TEXT: Any = 1


@pytest.mark.parametrize(
    "wrong", [RuntimeError("x"), "text", ("c", "d"), Fault("a", "\ud800"), Fault("a", NO_TEXT)]
)
def test_a_validator_that_fails_refuses_the_event(wrong: Any) -> None:
    """An exception, an answer that is none and a text that cannot be sent."""
    guard, metrics = guarded(Strict(Fault("a", "b"), wrong))
    assert Client(guard).submit("p").invalid == (FAILED,)
    assert failures(metrics) == {("validate", "raised"): 1}


def test_without_rules_of_its_own_a_plugin_is_not_in_the_way() -> None:
    """Nothing is copied, no state is needed."""
    item = Client(guarded(Plugin())[0]).submit("p")
    assert (item.invalid, item.check, item.needs_state()) == ((), None, False)


# Rules about the state.


class Watch:
    """The clocks of the guard: what a check takes of them does not depend on this machine."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.used = 0.0

    @property
    def clocks(self) -> Clocks:
        """What the guard is given."""
        return Clocks(lambda: self.passed, lambda: self.used)

    def pause(self, seconds: float) -> None:
        """Nothing is computed for so long."""
        self.passed += seconds

    def compute(self, seconds: float) -> None:
        """Use so much processor time."""
        self.used += seconds
        self.passed += seconds


@pytest.fixture
def watch() -> Watch:
    """What the guard measures with."""
    return Watch()


class Stateful(Plugin):
    """Looks at everything there is to see, and takes as long as it is told."""

    def __init__(
        self, *seconds: float, answer: Any = (), pass_time: Callable[[float], None] = compute
    ) -> None:
        self.seconds = list(seconds)
        self.answer = answer
        self.pass_time = pass_time
        self.seen: list[Any] = []

    def check(self, state: State, event: Event) -> Any:
        """One look."""
        self.seen.append(
            (
                state.partition,
                event.id,
                list(state.children("t")),
                list(state.children("t", "a")),
                list(state.children("t", "none")),
                state.parent("t", "a"),
                state.parent("t", "b"),
                state.parent("t", "none"),
                state.item("t", "a"),
                state.item("t", "none"),
                state.count("t"),
                state.value("v.x"),
                state.value("v.x.y"),
                state.value("v.none.y"),
            )
        )
        if self.seconds:
            self.pass_time(self.seconds.pop(0))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(state) if callable(self.answer) else self.answer


def act(action: str, **payload: Any) -> dict[str, Any]:
    """An event of the tree profile."""
    return {"type": action, "payload": payload}


def filled(name: str) -> Partition:
    """A partition with b below a, and a value."""
    partition = Partition(name)
    for event in (
        act("treePush", target="t", value={"id": "a", "k": [1]}),
        act("treePush", target="t", value={"id": "b"}, options={"parent": "a"}),
        act("set", target="v.x", value={"y": 7}),
    ):
        partition.tree.apply(event)
    return partition


def checked(
    plugin: Plugin, *states: Partition, budget_ms: int = 1000, clocks: Clocks = REAL
) -> Any:
    """What a check of one event finds, and the metrics."""
    guard, metrics = guarded(plugin, budget_ms, clocks)
    item = Client(guard).submit("p")
    assert item.needs_state()
    check = guard.check_of(item)
    assert check is not None
    return check({state.name: state.tree for state in states}), metrics


def test_a_check_sees_the_state_of_every_partition() -> None:
    """Items, places and values, in sorted order of the partitions (sync D48)."""
    plugin = Stateful()
    found, _ = checked(plugin, filled("p"), Partition("p-2"))
    assert found == ()
    item = {"id": "a", "k": [1]}
    assert plugin.seen == [
        ("p", "i", ["a"], ["b"], [], "_root", "a", None, item, None, 2, {"y": 7}, 7, None),
        ("p-2", "i", [], [], [], None, None, None, None, None, 0, None, None, None),
    ]


def test_a_check_sees_all_claims_as_they_are_in_the_token() -> None:
    """Whatever they are: an item is data that crosses to another process."""
    seen: list[Any] = []

    class Curious(Plugin):
        def check(self, state: State, event: Event) -> list[Fault]:
            seen.append(event.identity.claims)
            return []

    guard = guarded(Curious())[0]
    claims: dict[str, Any] = {"half": "\ud800", "large": 2**70, "role": ["w"]}
    item = Client(guard, **claims).submit("p")
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=PreparedItem)
    check = guard.check_of(crossed)
    assert check is not None
    assert check({"p": Partition("p").tree}) == ()
    assert {name: seen[0][name] for name in claims} == claims


def test_the_first_partition_with_a_fault_decides() -> None:
    """The others are not asked; a mistake about a target is a failure, not a silent pass."""
    fault = Fault("event", "full")
    plugin = Stateful(answer=lambda state: [fault] if state.partition == "p" else [])
    assert checked(plugin, Partition("p"), Partition("q"))[0] == (fault,)
    assert len(plugin.seen) == 1
    for wrong in (
        lambda state: state.item("v", "a"),
        lambda state: state.count("none"),
        lambda state: state.value("t"),
        lambda state: state.value("none.x"),
    ):
        found, metrics = checked(Stateful(answer=wrong), Partition("p"))
        assert found == (FAILED,)
        assert failures(metrics) == {("check", "raised"): 1}


def test_what_a_check_is_shown_is_its_own() -> None:
    """Changing an item or a value does not change the state."""

    def spoil(state: State) -> tuple[()]:
        item, value = state.item("t", "a"), state.value("v.x")
        assert item is not None
        item["k"].append(2)
        value["y"] = 8
        return ()

    partition = filled("p")
    before = partition.tree.export()
    assert checked(Stateful(answer=spoil), partition)[0] == ()
    assert partition.tree.export() == before


@pytest.mark.parametrize("answer", [RuntimeError("x"), None, "text", [("a", "b")]])
def test_a_check_that_fails_refuses_its_event(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With the protocol's shape of an error, a count, and a log line that names the plug-in."""
    found, metrics = checked(Stateful(answer=answer), Partition("p"))
    assert found == (FAILED,)
    assert failures(metrics) == {("check", "raised"): 1}
    assert "sync.plugin my:Rules: check failed" in caplog.text


def test_a_check_over_its_budget_refuses_its_event(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice too much is too much; all partitions together have one budget."""
    plugin = Stateful(0.004, 0.004, 0.004, 0.004, pass_time=watch.compute)
    found, metrics = checked(
        plugin, Partition("p"), Partition("q"), budget_ms=6, clocks=watch.clocks
    )
    assert found == (TOO_SLOW,)
    assert failures(metrics) == {("check", "over_budget"): 1}
    assert "sync.plugin my:Rules: check used" in caplog.text
    assert len(plugin.seen) == 4
    assert b'tidelog_sync_plugin_seconds_count{method="check"} 2.0' in metrics.render()


def test_a_pause_of_the_machine_costs_no_event(watch: Watch) -> None:
    """However long it lasts: what counts is what the check used of the processor."""
    paused = Stateful(50.0, 50.0, pass_time=watch.pause)
    found, metrics = checked(paused, Partition("p"), budget_ms=20, clocks=watch.clocks)
    assert found == ()
    assert failures(metrics) == {}
    assert len(paused.seen) == 1


def test_the_processor_is_what_a_check_is_measured_by(caplog: pytest.LogCaptureFixture) -> None:
    """On the clocks of this machine: one that computes for longer than it may is refused."""
    found, _ = checked(Stateful(0.03, 0.03), Partition("p"), budget_ms=20)
    assert found == (TOO_SLOW,)
    assert "ms of processor time, twice" in caplog.text


def test_a_check_over_its_budget_once_is_asked_again(watch: Watch) -> None:
    """Too much once and then within it: it passes. Too much with a verdict: the verdict counts."""
    once = Stateful(0.03, pass_time=watch.compute)
    found, metrics = checked(once, Partition("p"), budget_ms=20, clocks=watch.clocks)
    assert found == ()
    assert failures(metrics) == {}
    fault = Fault("event", "full")
    slow = Stateful(0.03, answer=[fault], pass_time=watch.compute)
    assert checked(slow, Partition("p"), budget_ms=20, clocks=watch.clocks)[0] == (fault,)
    assert len(slow.seen) == 1


def test_a_plugin_that_always_fails_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line a second and kind; every failure is counted."""
    guard, metrics = guarded(Strict(RuntimeError("x")))
    client = Client(guard)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            client.submit("p")
        assert len(caplog.records) == 1
        monkeypatch.setattr(plugin_guard, "LOG_SECONDS", 0.0)
        client.submit("p")
        assert len(caplog.records) == 2
    assert failures(metrics) == {("validate", "raised"): 6}


# Loading.


def test_a_class_and_an_object_can_be_named() -> None:
    """A class is made without arguments; an object is taken as it is."""
    made = load_plugin("support.sync.application:Rules")
    assert isinstance(made, Plugin)
    assert type(made).__name__ == "Rules"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("support.sync.application", "is not module:attribute"),
        (":Rules", "is not module:attribute"),
        ("support.nowhere:Rules", "there is no module support.nowhere. Install it"),
        ("support.sync.application:Nothing", "has no attribute 'Nothing'"),
        ("support.sync.application:NOT_A_PLUGIN", "is of type object; must be a subclass of"),
        ("support.sync.application:SLOW_SECONDS", "is of type float; must be a subclass of"),
        ("support.sync.application:NeedsArguments", "cannot be loaded: TypeError"),
        ("support.sync.application:Waits", "check is `async def`"),
        ("broken_application:Rules", "cannot be loaded: SyntaxError"),
    ],
)
def test_what_is_no_plugin_is_refused(
    setting: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the setting, the value and what to do."""
    (tmp_path / "broken_application.py").write_text("class Rules(", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        GuardedPlugin.from_settings(SyncSettings(plugin=setting), Metrics().part(SyncMetrics), REAL)
    assert str(refused.value).startswith("sync.plugin: ")
    assert setting in str(refused.value)
    assert says in str(refused.value)
    assert GuardedPlugin.from_settings(SyncSettings(), Metrics().part(SyncMetrics), REAL) is None
