"""The flags of `serve`: read alike by the short way and by the command."""

import inspect
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cli.inside import invoked
from tidelog.cli import commands, serving
from tidelog.cli.main import main
from tidelog.cli.serve import serve
from tidelog.cli.serve_flags import read_flags

_WORDS = (
    *("--host", "--port", "--data-dir", "--store", "--config", "--workers", "--log-level"),
    *("--log-format", "--dev", "--json", "--help", "--", "-h", "--no-such"),
    *("127.0.0.1", "8080", "0", "-1", "8o", "٣", "info", "json", "text", "trace", "auto", ""),
    *("--port=8080", "--host=::1", "--host=", "--config=a=b", "--dev=1", "--log-level=error"),
)


def as_the_command_reads(arguments: list[str]) -> dict[str, Any] | None:
    """What the command gives to the server; None if it gives it nothing."""
    given: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serving, "run", lambda **flags: given.append(flags))
        invoked(["serve", *arguments])
    return given[0] if given else None


@given(st.lists(st.sampled_from(_WORDS), max_size=6))
def test_flags_mean_the_same_both_ways(arguments: list[str]) -> None:
    """What the short way understands, the command understands in the same way."""
    flags = read_flags(["serve", *arguments])
    if flags is None:
        return
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(serving.run).parameters.items()
    }
    assert {**defaults, **flags} == as_the_command_reads(arguments)


def test_every_flag_is_understood() -> None:
    """Else a server with that flag would start as slowly as before."""
    arguments = [
        *("--host", "::1", "--port=8080", "--data-dir", "d", "--store", "s", "--config", "c.toml"),
        *("--workers", "auto", "--dev", "--log-level", "info", "--log-format=json", "--json"),
    ]
    flags = read_flags(["serve", *arguments])
    assert flags is not None
    assert flags.keys() == inspect.signature(serve).parameters.keys()


@pytest.mark.parametrize(
    "arguments", [[], ["log"], ["serve", "--help"], ["serve", "x"], ["--version"]]
)
def test_the_rest_is_for_the_command(arguments: list[str]) -> None:
    """Other commands, help and mistakes."""
    assert read_flags(arguments) is None


@pytest.mark.parametrize("arguments", [["serve", "--dev"], ["serve", "--dev=1"], ["log"]])
def test_an_interrupted_command_says_nothing(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also before there is a loop that would hear of it, and whoever reads the command line."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "run", interrupted)
    monkeypatch.setattr(commands, "app_for", lambda _arguments: interrupted)
    monkeypatch.setattr(sys, "argv", ["tidelog", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capfd.readouterr() == ("", "")


def test_a_server_starts_without_what_reads_command_lines() -> None:
    """Nearly half of the CPU of a start was for what other commands need."""
    program = (
        "import sys, tidelog.cli.main, tidelog.cli.serving, tidelog.serve.server;"
        "print(*({'typer', 'pydantic', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
