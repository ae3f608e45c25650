"""Versions and the fold of channel messages, on frames of at most ten rows."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.pipeline.lake_rows import at, frame_of, message_entry, rows_of, serial
from tidelog.channels.protocol.version import fold as server_fold
from tidelog.channels.protocol.version import stored_version
from tidelog.pipeline.transforms.messages import fold, message_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTE = ',"name":"note","data":"a","data_bytes":1,"extras":{"k":"v"}'


def folded(spark: "SparkSession", entries: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The messages that some entries make, by where they were created."""
    assert len(entries) <= 10
    found = rows_of(fold(message_versions(frame_of(spark, "log", entries))))
    return {row["first_committed_id"]: row for row in found}


def test_a_version_says_all_that_its_entry_says(spark: "SparkSession") -> None:
    """Every column of a version comes from its entry; values stay the JSON text they were."""
    fields = (
        ',"name":"chat","data":{"n": 1.10, "big":18446744073709551616},"data_bytes":43,'
        '"extras":{"headers":{}},"tags":{"t":"1"},"creator":"ana","client_id":"bo",'
        '"description":"why","metadata":null,"kept":["extras"],"cleared":["name"],"opens":1,'
        '"socket_id":"1.2","is_client_event":true,"op_id":"op"'
    )
    entries = [
        message_entry(7, "update", 3, fields, actor="bo", stream_serial=5),
        message_entry(8, "event", body=None),
    ]
    [version, pruned] = sorted(
        rows_of(message_versions(frame_of(spark, "log", entries))),
        key=lambda row: row["committed_id"],
    )
    assert version == {
        "committed_id": 7,
        "app_id": "app",
        "channel": "room",
        "message_serial": serial(3),
        "delivery_serial": 5,
        "history_serial": 3,
        "action": "update",
        "actor": "bo",
        "client_id": "bo",
        "creator": "ana",
        "message_id": "m7",
        "name": "chat",
        "data": '{"n": 1.10, "big":18446744073709551616}',
        "data_bytes": 43,
        "extras": '{"headers":{}}',
        "tags": '{"t":"1"}',
        "description": "why",
        "metadata": "null",
        "op_id": "op",
        "kept": ["extras"],
        "cleared": ["name"],
        "committed_at": at(7),
        "is_available": True,
    }
    assert pruned == {
        **dict.fromkeys(version),
        "committed_id": 8,
        "app_id": "app",
        "channel": "room",
        "message_serial": serial(8),
        "delivery_serial": 8,
        "action": "event",
        "actor": "ana",
        "committed_at": at(8),
        "is_available": False,
    }


@pytest.fixture(scope="module")
def simple(spark: "SparkSession") -> dict[int, dict[str, Any]]:
    """One message, appended to, deleted, updated; an event; and one that only was created."""
    return folded(
        spark,
        [
            message_entry(1, "create", fields=NOTE + ',"creator":"ana","client_id":"ana"'),
            message_entry(2, "append", 1, ',"name":"note","data":"b","data_bytes":2'),
            message_entry(3, "event", fields=',"name":"tick","data":"1","data_bytes":1'),
            message_entry(4, "append", 1, ',"name":"note","data":"c","data_bytes":3'),
            message_entry(5, "create", fields=',"name":"note","data":"x","data_bytes":1'),
            message_entry(
                6, "delete", 5, ',"name":"note","data":"x","data_bytes":1,"kept":["data"]'
            ),
            message_entry(7, "create", fields=',"name":"note","data":"y","data_bytes":1'),
            message_entry(8, "delete", 7, ',"name":"note","cleared":["data"]'),
            message_entry(
                9, "update", 7, ',"name":"note","data":"z","data_bytes":1,"client_id":"bo"'
            ),
        ],
    )


def test_a_message_is_its_newest_version_with_all_appends(
    simple: dict[int, dict[str, Any]],
) -> None:
    """Every column of a message; texts of appends are joined in the order of the log."""
    assert simple[1] == {
        "app_id": "app",
        "channel": "room",
        "message_serial": serial(1),
        "history_serial": 1,
        "state": "visible",
        "action": "append",
        "name": "note",
        "data": '"abc"',
        "data_bytes": 3,
        "extras": None,
        "tags": None,
        "creator": None,
        "client_id": None,
        "description": None,
        "metadata": None,
        "versions": 3,
        "appends": 2,
        "first_committed_id": 1,
        "last_committed_id": 4,
        "delivery_serial": 4,
        "published_at": at(1),
        "updated_at": at(4),
        "is_complete": True,
    }


def test_an_event_of_a_plain_history_is_a_message_that_never_changes(
    simple: dict[int, dict[str, Any]],
) -> None:
    """It is visible, and its action says what it is; a digit in quotes stays a text."""
    found = simple[3]
    assert (found["state"], found["action"], found["data"]) == ("visible", "event", '"1"')


def test_a_delete_takes_nothing_away_by_itself(simple: dict[int, dict[str, Any]]) -> None:
    """The message is deleted and still says what it said."""
    assert (simple[5]["state"], simple[5]["data"], simple[5]["name"]) == ("deleted", '"x"', "note")


def test_an_update_after_a_delete_makes_it_visible_again(
    simple: dict[int, dict[str, Any]],
) -> None:
    """Delete then update: the update says all of it."""
    found = simple[7]
    assert (found["state"], found["data"], found["action"]) == ("visible", '"z"', "update")
    assert (found["client_id"], found["versions"], found["appends"]) == ("bo", 3, 0)


@pytest.fixture(scope="module")
def unusual(spark: "SparkSession") -> dict[int, dict[str, Any]]:
    """Cleared, replaced with null, appended to when deleted and empty, exotic text."""
    return folded(
        spark,
        [
            message_entry(1, "create", fields=NOTE),
            message_entry(2, "update", 1, ',"cleared":["name","data","extras"]'),
            message_entry(3, "create", fields=NOTE),
            message_entry(4, "update", 3, ',"data":null,"data_bytes":4'),
            message_entry(5, "create", fields=',"data":"null","data_bytes":4'),
            message_entry(6, "create", fields=NOTE),
            message_entry(7, "delete", 6, ',"cleared":["data"]'),
            message_entry(8, "append", 6, r',"data":"\u0000\"","data_bytes":2'),
            message_entry(9, "append", 6, ',"data":"\U0001f30a\\ud83c\\udf0a","data_bytes":10'),
            message_entry(10, "append", 6, ',"data":""'),
        ],
    )


def test_cleared_fields_are_absent(unusual: dict[int, dict[str, Any]]) -> None:
    """What an update took away is null, and its size is none."""
    found = unusual[1]
    assert [found[c] for c in ("name", "data", "extras", "data_bytes")] == [None, None, None, 0]
    assert (found["state"], found["is_complete"]) == ("visible", True)


def test_null_is_a_value_and_the_text_null_another(unusual: dict[int, dict[str, Any]]) -> None:
    """Replaced with JSON null is neither cleared nor the string of that name."""
    assert unusual[3]["data"] == "null"
    assert unusual[5]["data"] == '"null"'


def test_an_append_to_what_was_cleared_is_all_of_it(unusual: dict[int, dict[str, Any]]) -> None:
    """Append after delete: visible again; U+0000, quotes and surrogate pairs survive the join."""
    found = unusual[6]
    assert found["state"] == "visible"
    assert found["data"] == '"\\u0000\\"\U0001f30a\\ud83c\\udf0a"'
    assert json.loads(found["data"]) == '\0"\U0001f30a\U0001f30a'
    assert (found["versions"], found["appends"]) == (5, 3)


def test_numbers_keep_every_digit(spark: "SparkSession") -> None:
    """2**63, 2**64, 1.10 and 1e400 come out as they went in, and not as strings."""
    texts = ["9223372036854775808", "-18446744073709551616", "1.10", "1e400", '"1.10"', "[1.0, 2]"]
    entries = [
        message_entry(n, "create", fields=f',"data":{text}') for n, text in enumerate(texts, 1)
    ]
    found = folded(spark, entries)
    assert [found[n]["data"] for n in range(1, len(texts) + 1)] == texts


def test_content_that_is_gone_is_not_guessed(spark: "SparkSession") -> None:
    """A message whose beginning is pruned has no data; a later update says all of it again."""
    found = folded(
        spark,
        [
            message_entry(1, "create", body=None),
            message_entry(2, "append", 1, ',"data":"b","data_bytes":2'),
            message_entry(3, "create", body=None),
            message_entry(4, "append", 3, body=None),
            message_entry(5, "update", 3, ',"data":"u","data_bytes":1'),
            message_entry(6, "append", 3, ',"data":"v","data_bytes":2'),
            message_entry(7, "create", body=b'{"message_id":'),
        ],
    )
    assert (found[1]["data"], found[1]["is_complete"], found[1]["data_bytes"]) == (None, False, 2)
    assert (found[3]["data"], found[3]["is_complete"], found[3]["versions"]) == ('"uv"', True, 4)
    assert (found[7]["data"], found[7]["is_complete"], found[7]["history_serial"]) == (
        None,
        False,
        None,
    )


def test_data_that_is_kept_is_what_was_there(spark: "SparkSession") -> None:
    """A version that keeps its data does not say it; without what it keeps, there is none."""
    found = folded(
        spark,
        [
            message_entry(1, "create", fields=NOTE),
            message_entry(2, "update", 1, ',"data_bytes":1,"kept":["data"],"data_of":1'),
            message_entry(3, "append", 1, ',"data":"b","data_bytes":2'),
            message_entry(4, "delete", 1, ',"data_bytes":2,"kept":["data"],"data_of":1'),
            message_entry(5, "create", body=None),
            message_entry(6, "update", 5, ',"data_bytes":1,"kept":["data"],"data_of":5'),
            message_entry(7, "create", fields=NOTE),
            message_entry(8, "update", 7, ',"cleared":["data"]'),
            message_entry(9, "update", 7, ',"kept":["data"]'),
        ],
    )
    shown = {n: (row["data"], row["is_complete"]) for n, row in found.items()}
    assert shown == {1: ('"ab"', True), 5: (None, False), 7: (None, True)}


def test_the_same_serial_in_two_channels_is_two_messages(spark: "SparkSession") -> None:
    """Channels do not mix, and neither do apps."""
    entries = [
        message_entry(1, "create", fields=NOTE),
        message_entry(2, "append", 1, ',"data":"b"', stream="channels/app/other"),
        message_entry(3, "append", 1, ',"data":"c"', stream="channels/else/room"),
    ]
    found = folded(spark, entries)
    assert {n: row["data"] for n, row in found.items()} == {1: '"a"', 2: '"b"', 3: '"c"'}


def test_a_fold_may_continue_an_earlier_one(spark: "SparkSession") -> None:
    """Wherever a log is cut, folding the parts one after the other gives what the whole gives."""
    entries = [
        message_entry(1, "create", fields=NOTE),
        message_entry(2, "append", 1, ',"data":"b","data_bytes":2'),
        message_entry(3, "create", body=None),
        message_entry(4, "append", 3, ',"data":"q","data_bytes":2'),
        message_entry(5, "append", 1, ',"data":"c","data_bytes":3'),
        message_entry(6, "update", 3, ',"data":{"j":1},"data_bytes":7'),
        message_entry(7, "delete", 1, ',"cleared":["data"]'),
        message_entry(8, "append", 1, ',"data":"d","data_bytes":1'),
        message_entry(9, "update", 3, ',"data_bytes":7,"kept":["data"],"data_of":6'),
        message_entry(10, "delete", 1, ',"data_bytes":1,"kept":["data"],"data_of":7'),
    ]
    versions = message_versions(frame_of(spark, "log", entries)).cache()

    def by_serial(frame: "DataFrame") -> list[dict[str, Any]]:
        return sorted(rows_of(frame), key=lambda row: str(row["message_serial"]))

    whole = by_serial(fold(versions))
    assert [row["data"] for row in whole] == ['"d"', '{"j":1}']
    for cut in (2, 4, 5, 7, 9):
        first = fold(versions.filter(versions["committed_id"] <= cut))
        assert by_serial(fold(versions.filter(versions["committed_id"] > cut), first)) == whole
    versions.unpersist()


def test_the_fold_agrees_with_the_server_s(spark: "SparkSession") -> None:
    """Two definitions of a message, written apart, give the same for the same entries."""
    entries = [
        message_entry(1, "create", fields=NOTE + ',"tags":{"t": "x"}'),
        message_entry(2, "append", 1, r',"name":"note","data":" \u00e9","data_bytes":4'),
        message_entry(3, "update", 1, ',"data":"new","data_bytes":3,"metadata":[1.50]'),
        message_entry(4, "append", 1, ',"data":"er","data_bytes":5,"extras":{"ai":{}}'),
        message_entry(5, "delete", 1, ',"data_bytes":5,"kept":["data"],"data_of":3'),
        message_entry(6, "append", 1, ',"data":"","data_bytes":5,"description":"end"'),
    ]
    [ours] = folded(spark, entries).values()
    theirs = server_fold(
        None,
        [
            stored_version(
                e["kind"],
                e["committed_id"],
                e["committed_at"],
                e["stream_serial"],
                e["entity"],
                e["body"],
            )
            for e in entries
        ],
    )
    assert theirs is not None
    assert ours["data"].encode() == bytes(theirs.data)  # type: ignore[arg-type]
    for name in ("name", "data_bytes", "description", "creator", "versions", "appends"):
        assert ours[name] == getattr(theirs, name), name
    assert ours["action"] == theirs.verb
    assert ours["extras"] is None
    assert (ours["state"], ours["updated_at"]) == ("visible", at(6))
