"""`tidelog monitoring`: what Grafana and Prometheus are given to watch a server."""

import json
from importlib import resources
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)

PACKAGE = "tidelog.monitoring"
DASHBOARD, RULES = "grafana.json", "alerts.yaml"

_AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object with the file's path and its text."),
]


@app.callback()
def monitoring() -> None:
    """Print the Grafana dashboard and the alert rules that come with tidelog."""


@app.command(epilog="Example: tidelog monitoring grafana > tidelog-dashboard.json")
def grafana(*, as_json: _AsJson = False) -> None:
    """Print the Grafana dashboard; import it there and choose your Prometheus."""
    _print(DASHBOARD, as_json=as_json)


@app.command(epilog="Example: tidelog monitoring alerts > /etc/prometheus/rules/tidelog.yaml")
def alerts(*, as_json: _AsJson = False) -> None:
    """Print the alert rules for Prometheus; name the file under rule_files there."""
    _print(RULES, as_json=as_json)


def _print(name: str, *, as_json: bool) -> None:
    file = resources.files(PACKAGE).joinpath(name)
    text = file.read_text(encoding="utf-8")
    if as_json:
        text = json.dumps({"path": str(file), "text": text}) + "\n"
    typer.echo(text, nl=False)
