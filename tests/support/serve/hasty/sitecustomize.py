"""Every Python process with this folder on its path has a mistake.

Its owner answers what it has decided, and commits a moment later.
"""

import asyncio
from typing import Any

from tidelog.log.committer import Committer

_committer: Any = Committer
_decide_all, _write = _committer._decide_all, _committer._write


class _Answered:
    waits_for_entries = False

    def hand_over(self, answers: Any) -> None:
        """It was."""


def _answered_at_once(self: Committer, *arguments: Any) -> Any:
    decided = _decide_all(self, *arguments)
    for request, answers, _ in decided:
        self._answer(request, answers)
    return [each._replace(request=_Answered()) for each in decided]


async def _written_later(self: Committer, *arguments: Any) -> None:
    await asyncio.sleep(0.1)
    await _write(self, *arguments)


_committer._decide_all = _answered_at_once
_committer._write = _written_later
