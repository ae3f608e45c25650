"""What a message is: a fold of its versions, over Arrow tables.

An update or a delete says all of the data that it gave, and nothing of data that it kept; an append
says its fragment only. So a message is what its newest version says, and its data what the last
version that gave or cleared it said, with the fragments since then joined to it. A delete takes
nothing away by itself, and anything may follow it.

A *step* is some versions of one message, folded: a single version, or many, or all of them. Steps
of one message whose versions follow each other in the log make one step again, and it does not
matter in which order they are brought together. So each task folds what it has read, few rows go
from task to task, and a message that was folded before goes on from there.

The condition is that no version of a message lies between two that one step has and is in another:
fragments are joined in a step, and nothing could be put between them afterwards. Whoever makes
steps of more than one version reads ranges of the log for that reason.

Arrow and NumPy do it a column at a time; a library of data frames would be another 170 MB.
"""

from typing import TYPE_CHECKING, Any

from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, Any]

VISIBLE = "visible"
DELETED = "deleted"
PURGED = "purged"

KEY = ("app_id", "channel", "message_serial")

_NEWEST = (
    "action",
    "name",
    "data_bytes",
    "extras",
    "tags",
    "creator",
    "client_id",
    "description",
    "metadata",
    "delivery_serial",
)
"""What a message takes from its newest version as it is."""

READ = (
    *KEY,
    *("committed_id", "history_serial", "data", *_NEWEST, "kept", "is_available", "committed_at"),
)
"""The columns of `message_version` that a fold reads."""

MESSAGE = tuple(column.name for column in BY_NAME["message"].columns)

_KINDS = {
    **{column.name: column.kind for column in BY_NAME["message"].columns},
    "committed_id": "bigint",
    "is_whole": "boolean",
}

STEP = (
    *KEY,
    "committed_id",
    "is_whole",
    "data",
    "history_serial",
    *_NEWEST,
    "is_complete",
    "versions",
    "appends",
    "first_committed_id",
    "published_at",
    "updated_at",
)
"""The columns of a step: where its last version is, whether it says all of the data or only what is
to be joined to what was there, and the rest as in `message`."""

STEP_DDL = ", ".join(f"{name} {_KINDS[name]}" for name in STEP)
MESSAGE_DDL = ", ".join(f"{name} {_KINDS[name]}" for name in MESSAGE)


def steps_of_versions(versions: "pa.Table") -> "pa.Table":
    """Every row of `message_version` as a step."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_append = pc.equal(versions["action"], "append")
    # The log of an earlier schema repeats the data that a version keeps: such a version says all.
    keeps = pc.and_(pc.is_null(versions["data"]), _keeps_data(versions["kept"]))
    columns = {name: versions[name] for name in (*KEY, "committed_id", "data", "history_serial")}
    columns |= {name: versions[name] for name in _NEWEST}
    return _table(
        columns
        | {
            "is_whole": pc.and_(pc.invert(is_append), pc.invert(keeps)),
            "is_complete": versions["is_available"],
            "versions": pa.repeat(1, len(versions)),
            "appends": is_append,
            "first_committed_id": versions["committed_id"],
            "published_at": versions["committed_at"],
            "updated_at": versions["committed_at"],
        },
        STEP,
    )


def _keeps_data(kept: "pa.ChunkedArray") -> "pa.Array":
    """Of each list whether `data` is in it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = _one(kept)
    keeps = np.zeros(len(lists), dtype=bool)
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    keeps[rows[_flags(pc.equal(pc.list_flatten(lists), "data"))]] = True
    return pa.array(keeps)


def steps_of_messages(messages: "pa.Table") -> "pa.Table":
    """Every row of `message` as the step of all versions that made it."""
    import pyarrow as pa

    same = {name: messages[name] for name in STEP if name in MESSAGE}
    whole = pa.repeat(pa.scalar(value=True), len(messages))
    return _table(same | {"committed_id": messages["last_committed_id"], "is_whole": whole}, STEP)


def combined(steps: "pa.Table") -> "pa.Table":
    """One step of each message; see above for which steps that is right."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(steps):
        return steps
    steps = steps.combine_chunks()
    order, starts = _by_message(steps)
    if len(starts) == len(order):
        return steps
    numbers = np.diff(starts, append=len(order))
    # From the last step that says all of the data on, steps count for it.
    rows = np.arange(len(order))
    is_whole = _flags(steps["is_whole"])[order]
    last_whole = np.maximum.reduceat(np.where(is_whole, rows, -1), starts)
    counts = rows >= np.repeat(np.maximum(last_whole, starts), numbers)
    is_complete = _flags(steps["is_complete"])[order]
    serials = pc.fill_null(steps["history_serial"], -1).to_numpy()[order]
    highest = np.maximum.reduceat(serials, starts)
    columns = _taken(
        steps, (*KEY, "committed_id", *_NEWEST, "updated_at"), order[starts + numbers - 1]
    )
    columns |= _taken(steps, ("first_committed_id", "published_at"), order[starts])
    columns |= {
        name: pa.array(np.add.reduceat(steps[name].to_numpy()[order], starts))
        for name in ("versions", "appends")
    }
    return _table(
        columns
        | {
            "is_whole": pa.array(last_whole >= 0),
            "is_complete": pa.array(np.logical_and.reduceat(~counts | is_complete, starts)),
            "history_serial": pa.array(highest, mask=highest < 0),
            "data": _joined(steps["data"], order, counts, starts),
        },
        STEP,
    )


def _by_message(steps: "pa.Table") -> "tuple[Numbers, Numbers]":
    """The rows message by message, each in the order of the log; and where each message begins."""
    import numpy as np

    messages = np.zeros(len(steps), dtype=np.int64)
    for name in KEY:
        encoded = _one(steps[name]).dictionary_encode()
        messages = messages * len(encoded.dictionary) + encoded.indices.to_numpy()
    order = np.lexsort((steps["committed_id"].to_numpy(), messages))
    messages = messages[order]
    return order, np.flatnonzero(np.r_[True, messages[1:] != messages[:-1]])


def _taken(steps: "pa.Table", names: tuple[str, ...], rows: "Numbers") -> "dict[str, Any]":
    """Some columns of some rows."""
    import pyarrow as pa

    taken = steps.select(names).take(pa.array(rows))
    return {name: taken[name] for name in names}


def _joined(
    data: "pa.ChunkedArray", order: "Numbers", counts: "Numbers", starts: "Numbers"
) -> "pa.Array":
    """The data of each message out of the parts that count; of several each is a JSON string."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    large = pa.large_binary()  # over 2 GB, perhaps
    is_part = counts & _flags(pc.is_valid(data))[order]
    texts = _one(data.cast(pa.large_string())).cast(large).take(pa.array(order[is_part]))
    before = np.r_[0, np.cumsum(is_part)][starts]
    number = np.diff(before, append=len(texts))
    only = texts.take(pa.array(before, mask=number == 0))
    inner = pc.binary_slice(texts, 1, -1)
    offsets = pa.array(np.r_[before, len(texts)])
    nothing, quote = pa.scalar(b"", large), pa.scalar(b'"', large)
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, inner), nothing)
    whole = pc.binary_join_element_wise(quote, joined, quote, nothing)
    return pc.if_else(pa.array(number > 1), whole, only).cast(pa.large_string())


def messages_of(steps: "pa.Table") -> "pa.Table":
    """Rows of `message` of steps that have all versions of theirs; nothing is `purged` yet."""
    import pyarrow.compute as pc

    same = {name: steps[name] for name in STEP if name in MESSAGE}
    return _table(
        same
        | {
            "last_committed_id": steps["committed_id"],
            "data": pc.if_else(steps["is_complete"], steps["data"], None),
            "state": pc.if_else(pc.equal(steps["action"], "delete"), DELETED, VISIBLE),
        },
        MESSAGE,
    )


def _table(columns: "dict[str, Any]", names: tuple[str, ...]) -> "pa.Table":
    """Columns as a table, with the types of a step or of a message."""
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    schema = pa.schema([(name, types[_KINDS[name]]) for name in names])
    return pa.table({name: columns[name] for name in names}).cast(schema)


def _one(column: "pa.ChunkedArray | pa.Array") -> "pa.Array":
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _flags(column: "pa.ChunkedArray | pa.Array") -> "np.ndarray[Any, Any]":
    flags: np.ndarray[Any, Any] = _one(column).to_numpy(zero_copy_only=False)
    return flags
