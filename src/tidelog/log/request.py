"""The request that most callers submit: some items, and someone who waits for their answers."""

import asyncio
from collections.abc import Callable, Sequence

from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure, Item, Names


class Submission:
    """A `Request` made of prepared items; `answered` is called once, on the event loop."""

    __slots__ = ("_answered", "_items", "names", "size_bytes")

    waits_for_entries = False

    def __init__(
        self,
        names: Names,
        size_bytes: int,
        items: Sequence[Item],
        answered: Callable[[Sequence[Answer | Failure]], None],
    ) -> None:
        self.names = names
        self.size_bytes = size_bytes
        self._items = items
        self._answered = answered

    def items(self) -> Sequence[Item]:
        """See `Request.items`."""
        return self._items

    def hand_over(self, answers: Sequence[Answer | Failure]) -> None:
        """See `Request.hand_over`."""
        self._answered(answers)


async def submit_and_wait(
    committer: Committer,
    names: Names,
    size_bytes: int,
    items: Sequence[Item],
    *,
    at_once: Callable[[], None] | None = None,
) -> Sequence[Answer | Failure]:
    """Submit and await the answers, for callers that have no session to be answered through.

    A caller that is cancelled meanwhile (its peer hung up) withdraws nothing: the request commits.
    Whoever waits goes on later than the answers come; what must happen before anything later leaves
    the tail does `at_once`, whether the store has failed or not.

    Raises:
        QueueFull: see `Committer.submit`.
        ShuttingDown: see `Committer.submit`.
    """
    answers: asyncio.Future[Sequence[Answer | Failure]]
    answers = asyncio.get_running_loop().create_future()

    def resolve(result: Sequence[Answer | Failure]) -> None:
        if at_once is not None:
            at_once()
        if not answers.done():
            answers.set_result(result)

    committer.submit(Submission(names, size_bytes, items, resolve))
    return await answers


def without_failure(answers: Sequence[Answer | Failure]) -> Sequence[Answer]:
    """The answers, if the store took all of their items; else raises the first failure's error."""
    for answer in answers:
        if isinstance(answer, Failure):
            raise answer.error
    return answers
