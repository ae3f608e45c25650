"""The Grafana dashboard and the alert rules speak of metrics that exist, and of all of them."""

import asyncio
import json
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.cli.inside import invoked
from support.dashboard.stage import Stage
from support.monitoring.promql import Use, uses
from tidelog.cli.commands import app
from tidelog.config.metrics import all_metrics

pytestmark = pytest.mark.asyncio(loop_scope="session")

FROM_PROMETHEUS = {"instance", "job"}
"""Labels that every scraped metric has."""

SPECIFIED = (
    "daemon_connected",
    "daemon_outbox_depth",
    "daemon_outbox_age_seconds",
    "daemon_dedupe_total",
    "daemon_disk_pct",
    "daemon_send_total",
    "daemon_recv_total",
    "daemon_ipc_request_total",
    "daemon_dedupe_history_pruned_total",
    "daemon_retry_after_dedupe_expired_total",
    "daemon_invalid_inbound_total",
    "broker_dedupe_fingerprint_mismatch_total",
    "broker_dedupe_orphan_check_total",
    "broker_dedupe_orphan_found",
    "broker_atomicity_violation_found",
    "broker_dedupe_misconfig_total",
    "broker_rate_limit_rejection_total",
    "broker_rate_limit_consumed_then_b2_rejected_total",
    "decide_seconds_bucket",
)
"""Every metric that mesh 13 names, and the one of the architecture."""

Exported = dict[str, frozenset[str]]
"""Names of samples, each with the labels it can have."""


def printed(name: str) -> str:
    """What `tidelog monitoring` prints."""
    result = invoked(["monitoring", name])
    assert result.exit_code == 0
    return result.stdout


def dashboard() -> Any:
    """The dashboard, read."""
    return json.loads(printed("grafana"))


def rules() -> list[dict[str, Any]]:
    """Every alert rule."""
    return [
        rule for group in yaml.safe_load(printed("alerts"))["groups"] for rule in group["rules"]
    ]


def panels() -> list[dict[str, Any]]:
    """Every panel that shows something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> Iterator[str]:
    """Every expression of the dashboard."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]


def alert_expressions() -> Iterator[str]:
    """Every expression of the rules."""
    for rule in rules():
        yield rule["expr"]


def samples_of(text: str) -> Exported:
    """Names of samples in an exposition, with the labels that were seen."""
    exported: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(text):
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        for ending in endings.get(family.type, [""]):
            exported[family.name + ending] = frozenset()
        for sample in family.samples:
            exported[sample.name] = exported.get(sample.name, frozenset()) | set(sample.labels)
    return {name: labels for name, labels in exported.items() if not name.endswith("_created")}


def declared_labels() -> Exported:
    """The labels of metrics that have no sample before something goes wrong."""
    collectors = all_metrics().registry._collector_to_names
    metrics: list[Any] = [metric for metric in collectors if hasattr(metric, "_labelnames")]
    return {
        metric._name + ending: frozenset((*metric._labelnames, *(["le"] * (ending == "_bucket"))))
        for metric in metrics
        for ending in ("", "_total", "_bucket", "_sum", "_count")
    }


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def exported(stage: Stage) -> Exported:
    """What the server and the daemons really export, after traffic and a few refusals."""

    def ask(path: str) -> str:
        with urllib.request.urlopen(stage.server.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def scrape() -> Exported:
        upgrade = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        request = urllib.request.Request(f"{stage.server.url}/nowhere", headers=upgrade)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=60)
        texts = [ask("/metrics"), stage.daemons["pilot"].ask_text("/v1/metrics")]
        found: Exported = {}
        for text in texts:
            found |= samples_of(text)
        return found

    async with stage.traffic():
        return await asyncio.to_thread(scrape)


def assert_real(use: Use, exported: Exported) -> None:
    """The metric exists, and so do its labels."""
    if use.metric == "up":  # Prometheus makes it
        return
    assert use.metric in exported, f"no server or daemon exports {use.metric}"
    known = exported[use.metric] | declared_labels().get(use.metric, frozenset())
    assert use.labels - FROM_PROMETHEUS <= known, f"{use.metric} has no {use.labels - known}"


async def test_every_metric_of_the_dashboard_is_exported(exported: Exported) -> None:
    """Names, and labels that are selected or grouped by; a histogram by its buckets."""
    for expression in dashboard_expressions():
        found = list(uses(expression))
        assert found, expression
        for use in found:
            if "histogram_quantile" in expression:
                assert use.metric.endswith("_bucket"), expression
                assert "by (instance, le" in expression
            if re.search(r"\b(rate|increase)\(", expression):
                assert use.metric.endswith(("_total", "_count", "_bucket")), expression
            assert_real(use, exported)


async def test_every_metric_of_the_rules_is_exported(exported: Exported) -> None:
    """Names and labels, as for the dashboard."""
    for expression in alert_expressions():
        found = list(uses(expression))
        assert found, expression
        for use in found:
            labels = use.labels if len(found) == 1 else frozenset[str]()
            assert_real(Use(use.metric, labels), exported)


async def test_everything_exported_is_on_the_dashboard(exported: Exported) -> None:
    """Nothing that a server or a daemon counts is left without a picture."""
    shown = {use.metric for text in dashboard_expressions() for use in uses(text)}
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    for name in exported:
        if name.startswith("tidelog_"):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in stems, f"{name} is not shown"


async def test_everything_specified_is_exported_and_shown(exported: Exported) -> None:
    """Every metric that the contracts name exists and is on the dashboard."""
    shown = {use.metric for text in dashboard_expressions() for use in uses(text)}
    for stem in SPECIFIED:
        assert f"tidelog_{stem}" in exported, stem
        assert f"tidelog_{stem}" in shown, stem


async def test_the_dashboard_is_well_formed() -> None:
    """Ids are unique, panels do not overlap, everybody's data source is the variable."""
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) > 20
    assert {"datasource", "instance", "daemon"} == {
        variable["name"] for variable in board["templating"]["list"]
    }
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            variables = set(re.findall(r"\$(\w+)", target["expr"]))
            assert variables <= {"instance", "daemon", "__rate_interval"}


async def test_every_rule_says_what_to_do() -> None:
    """Each has a severity, a summary that names the place, and a description to act on."""
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 20
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert "{{ $labels." in rule["annotations"]["summary"], rule["alert"]
        description = rule["annotations"]["description"]
        assert len(description.split()) >= 15, rule["alert"]
        labels = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        found = list(uses(rule["expr"]))
        known = FROM_PROMETHEUS | declared_or_seen(found)
        assert labels <= known, rule["alert"]


def declared_or_seen(found: list[Use]) -> set[str]:
    """Labels of the metrics of an expression; the daemon's are those it is selected by."""
    declared = declared_labels()
    labels: set[str] = set()
    for use in found:
        labels |= declared.get(use.metric, frozenset()) | use.labels
        if use.metric == "tidelog_daemon_disk_pct":
            labels.add("kind")
    return labels


async def test_commands_in_the_rules_exist() -> None:
    """Every command that a description tells to run is one."""
    group = typer.main.get_command(app)
    commands = re.findall(r"`(tidelog [^`]+)`", " ".join(printed("alerts").split()))
    assert len(commands) > 3
    for command in commands:
        place: Any = group
        for word in shlex.split(command)[1:]:
            if word.startswith("--"):
                assert word in {name for option in place.params for name in option.opts}, command
            elif hasattr(place, "commands"):
                assert word in place.commands, command
                place = place.commands[word]


async def test_the_files_are_in_the_package() -> None:
    """`--json` names the file in the installed package, with the same text."""
    for name in ("grafana", "alerts"):
        result = invoked(["monitoring", name, "--json"])
        told = json.loads(result.stdout)
        assert told["text"] == printed(name)
        assert Path(told["path"]).parts[-3:-1] == ("tidelog", "monitoring")
