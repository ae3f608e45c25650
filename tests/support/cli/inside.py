"""The `tidelog` command in the test's own process, as `tidelog.cli.main` has it parsed."""

from collections.abc import Mapping, Sequence

from typer.testing import CliRunner, Result

from tidelog.cli.commands import app_for


def invoked(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    catch_exceptions: bool = True,
) -> Result:
    """How it ended, and what it printed."""
    runner = CliRunner()
    return runner.invoke(app_for(arguments), arguments, env=env, catch_exceptions=catch_exceptions)
