"""What a supervisor runs for a server of several processes: its owner, then its fronts."""

import sys
from collections.abc import Sequence

from tidelog.base.supervisor import Program
from tidelog.serve.program import Arguments


def ranks(fronts: int, arguments: Arguments) -> Sequence[Sequence[Program]]:
    """For `Supervisor`: fronts begin when the owner is ready, and have ended before it ends."""
    names = [f"front {number}" for number in range(1, fronts + 1)]
    return (
        [Program("owner", _command("owner", arguments))],
        [Program(name, _command("front", arguments), is_given_port=True) for name in names],
    )


def _command(module: str, arguments: Arguments) -> Sequence[str]:
    return (sys.executable, "-m", f"tidelog.serve.{module}", *filter(None, arguments))
