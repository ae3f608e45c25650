"""Tree moves in this process, on small and large trees."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from sync_parts.logs import FAN_OUT, MODEL, TARGET
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.protocol.tree import TreeState

MOVES = 3000
TREE_SIZES = (100, 100_000)


def _tree(size: int, parent_of: Callable[[int], int | None]) -> TreeState:
    state = TreeState(Model.parse(MODEL["tree_targets"], {}, 1))
    for number in range(size):
        options: dict[str, Any] = {"position": "last"}
        parent = parent_of(number)
        if parent is not None:
            options["parent"] = f"n{parent}"
        payload = {"target": TARGET, "value": {"id": f"n{number}"}, "options": options}
        state.apply({"type": "treePush", "payload": payload})
    return state


def _move(moved: int, **options: Any) -> dict[str, Any]:
    return {
        "type": "treeMove",
        "payload": {"target": TARGET, "options": {"id": f"n{moved}", **options}},
    }


def _flat_moves(size: int, chance: random.Random) -> list[dict[str, Any]]:
    """Any node after any other."""
    pairs = [chance.sample(range(size), 2) for _ in range(MOVES)]
    return [_move(moved, position={"after": f"n{other}"}) for moved, other in pairs]


def _balanced_moves(size: int, chance: random.Random) -> list[dict[str, Any]]:
    """Any node, with all below it, under any node that has children; some are refused."""
    inner = (size - 1) // FAN_OUT
    return [
        _move(chance.randrange(1, size), parent=f"n{chance.randrange(inner)}", position="last")
        for _ in range(MOVES)
    ]


def _time_moves(state: TreeState, moves: Sequence[dict[str, Any]]) -> float:
    """Microseconds of check and apply, over the moves that may happen."""
    now, took, count = time.perf_counter, 0.0, 0
    for move in moves:
        started = now()
        if not state.check(move):
            state.apply(move)
            took += now() - started
            count += 1
    return took / count * 1e6


def measure_moves(repeats: int) -> dict[str, Any]:
    """Flat and balanced trees, small and large."""
    result: dict[str, Any] = {}
    for kind, parent_of, moves_of in (
        ("flat", lambda _: None, _flat_moves),
        ("balanced", lambda number: (number - 1) // FAN_OUT if number else None, _balanced_moves),
    ):
        figures = {}
        for size in TREE_SIZES:
            state, chance = _tree(size, parent_of), random.Random(size)
            gc.collect()
            gc.freeze()
            _time_moves(state, moves_of(size, chance))  # warm
            runs = [_time_moves(state, moves_of(size, chance)) for _ in range(repeats)]
            gc.unfreeze()
            figures[size] = statistics.median(runs)
        small, large = figures.values()
        result[kind] = {
            **{f"us_per_move_at_{size}": round(us, 2) for size, us in figures.items()},
            "ratio": round(large / small, 2),
        }
    return {**result, "aim_ratio": 3}
