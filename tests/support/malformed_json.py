"""Text that stands where a JSON object should, and is none that a careful reader takes."""

import json
import random
from collections.abc import Callable

from support.channels.raw import Json

POISON = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e400", "9" * 4301, "01", "1.", ".5", "+1"),
    *('"\\ud800"', '"\\udfff\\ud800"', '"a\\ud83d"', '"\\x"', '"\t"', "'a'", "nul", "//"),
    *('{"k":1,"k":1}', '{"k":1,"\\u006b":2}', '{"a":{"b":[{"c":1,"c":1}]}}', "[1,]", "{,}"),
    *("[" * 65 + "]" * 65, '{"a":' * 200 + "1" + "}" * 200, "[" * 3000),
]


def poisoned(rng: random.Random, message: Json) -> str:
    """JSON text with something in it that is none, or that two readers read differently."""
    broken = {**message, rng.choice([*message, "extra"]): "@@"}
    return json.dumps(broken).replace('"@@"', rng.choice(POISON), 1)


def cut(rng: random.Random, message: Json) -> str:
    """JSON text that ends too early, or too late."""
    text = json.dumps(message)
    if rng.random() < 0.2:
        return text + rng.choice(["}", "{}", " null", ",", "\0"])
    return text[: rng.randrange(1, len(text))]


def no_object(rng: random.Random, message: Json) -> str:
    """JSON that is something else, or no JSON at all."""
    texts = ["null", "5", '"text"', "[]", json.dumps([message]), json.dumps(json.dumps(message))]
    letters = '{}[]":,0123456789eE+-.\\untrue\u00e9\U0001f600 \0'
    noise = "\x01" + "".join(rng.choices(letters, k=rng.randrange(60)))
    return rng.choice([*texts, noise])


BROKEN: list[Callable[[random.Random, Json], str]] = [poisoned, cut, no_object]
