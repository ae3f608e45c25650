"""A progress bar on standard error, so that standard output stays clean for pipes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is told the work done and the work there is; nothing if nobody can see it.

    If it is not known how much work there is, the bar moves and counts.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None) -> None:
            named = what if total is not None else f"{what}: {done:,}"
            bar.update(task, description=named, completed=done, total=total)

        yield show
