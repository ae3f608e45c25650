"""Outcomes that are told instead of awaited.

A task, a future and a chain of coroutines cost more than what a hot path does while it has them.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

Told = Callable[[T | Exception], None]
"""Takes what came of something, once: now or later. It never raises."""
