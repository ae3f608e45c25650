"""`tidelog config check` shows settings and refuses wrong ones."""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tidelog.cli.config import app
from tidelog.testing.process import CREDENTIALS

main = typer.Typer()
main.add_typer(app, name="config")


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside the test."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)


def run(*arguments: str, **environ: str) -> Result:
    """The command in its own process' place."""
    return CliRunner().invoke(main, ["config", *arguments], env=environ)


def test_values_are_shown_as_in_a_file_with_their_origin() -> None:
    """Without options every key stands in its section; a comment says where a value comes from."""
    Path("tidelog.toml").write_text("[limits]\nmax_headers = 50")
    result = run("check", TIDELOG_PORT="9000")
    assert result.exit_code == 0
    sections = dict(re.findall(r"^\[(.+)\]\n((?:.+\n)*)", result.stdout, re.MULTILINE))
    top = result.stdout.partition("[")[0].splitlines()
    assert "port = 9000".ljust(44) + " # environment TIDELOG_PORT" in top
    assert "max_headers = 50".ljust(44) + " # tidelog.toml" in sections["limits"].splitlines()
    assert "pool_size = 4" in sections["postgresql"].splitlines()


def test_what_is_shown_is_a_settings_file() -> None:
    """It can be read again, with the same keys and values; only secrets are masked."""
    app = 'id = "a"\nkey = "b"\nsecret = "long enough to be kept"'
    Path("tidelog.toml").write_text(f"[[apps]]\n{app}")
    shown = json.loads(run("check", "--json").stdout)
    read = tomllib.loads(run("check").stdout)

    def value(key: str) -> object:
        found: Any = read
        for name in re.findall(r"\w+", key):
            found = found[int(name)] if name.isdecimal() else found[name]
        return found

    assert {key: value(key) for key in shown} == {key: row["value"] for key, row in shown.items()}


def test_secrets_a_server_would_not_start_with_are_named() -> None:
    """On standard error, so that the output stays the settings; nothing is said when all is set."""
    result = run("check", "--json", TIDELOG_ADMIN_TOKEN="s3cret")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["admin_token"]["value"] == "********"
    first, second = result.stderr.splitlines()
    assert first.endswith("admin_token is shorter than 16 characters")
    assert "no app has a secret" in second
    for enough in ({"TIDELOG_DEV": "true"}, CREDENTIALS):
        assert run("check", **enough).stderr == ""


def test_it_fits_a_terminal_of_eighty_columns(tmp_path: Path) -> None:
    """Whatever the origin's length: it then stands above its setting."""
    file = tmp_path / ("deep/" * 12) / "tidelog.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[limits]\nmax_headers = 50")
    lines = run("check", "--config", str(file)).stdout.splitlines()
    assert lines[lines.index("max_headers = 50") - 1] == f"# {file}"
    assert max(len(line) for line in lines if not line.startswith("# /")) <= 80


def test_json() -> None:
    """With --json one object maps each key to its typed value and its origin."""
    path = Path("my.toml")
    path.write_text('port = 81\nstore = "postgresql://u:s3cret@h/d"')
    result = run("check", "--json", "--config", str(path))
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert shown["port"] == {"value": 81, "origin": "my.toml"}
    assert shown["dev"] == {"value": False, "origin": "default"}
    assert shown["store"]["value"] == "postgresql://u:********@h/d"


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_secrets_are_masked(option: list[str]) -> None:
    """Neither form shows a secret."""
    result = run("check", *option, TIDELOG_ADMIN_TOKEN="s3cret")
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert "********" in result.output


def test_values_are_not_markup() -> None:
    """A value that looks like markup or an emoji code is shown as it is."""
    result = run("check", TIDELOG_HOST="[bold]:smile:[/nothing]")
    assert '"[bold]:smile:[/nothing]"' in result.stdout


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_refusal_goes_to_stderr_with_exit_code_2(option: list[str]) -> None:
    """A wrong setting ends with code 2, its reason on stderr and nothing on stdout."""
    result = run("check", *option, TIDELOG_PORT="high")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "port (environment TIDELOG_PORT): 'high' is not allowed" in result.stderr


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_an_unknown_variable_is_a_warning(option: list[str]) -> None:
    """It is named on stderr; the settings are shown all the same."""
    result = run("check", *option, TIDELOG_PROT="1")
    assert result.exit_code == 0
    assert "port" in result.stdout
    assert "ignored: unknown variable TIDELOG_PROT" in result.stderr
    assert "TIDELOG_PORT" in result.stderr


def test_missing_file_is_refused() -> None:
    """A file that was named must exist."""
    result = run("check", "--config", "missing.toml")
    assert result.exit_code == 2
    assert "missing.toml: No such file" in result.stderr


def test_help_has_an_example() -> None:
    """The help shows a command line to copy."""
    result = run("check", "--help")
    assert result.exit_code == 0
    assert "Example: tidelog config check" in result.stdout


def test_group_without_command_shows_help() -> None:
    """`tidelog config` alone explains its commands."""
    result = run()
    assert "check" in result.output


def test_a_wrong_plugin_is_found() -> None:
    """What `sync.plugin` names is imported; a mistake is exit code 2 and names the setting."""
    assert run("check", TIDELOG_SYNC_PLUGIN="support.sync.application:Rules").exit_code == 0
    result = run("check", TIDELOG_SYNC_PLUGIN="support.nowhere:Rules")
    assert result.exit_code == 2
    assert "sync.plugin: support.nowhere:Rules: there is no module support.nowhere" in result.stderr
