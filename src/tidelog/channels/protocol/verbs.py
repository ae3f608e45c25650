"""What can be done to a message: the one list of it, which everything else is derived from."""

from typing import Literal, get_args

MutationVerb = Literal["update", "delete", "append"]
"""What can be done to a message that is there. Each has a body, `bodies.MUTATIONS`."""

Verb = Literal["create", MutationVerb]

MUTATION_VERBS: tuple[MutationVerb, ...] = get_args(MutationVerb)
VERBS: tuple[Verb, ...] = get_args(Verb)

KIND_PREFIX = "message."
"""The kind of a log entry, and of a V2 frame, is this and the verb."""


def kind_of(verb: Verb) -> str:
    """The kind of its entries and frames."""
    return KIND_PREFIX + verb


# Kinds that code treats each in its own way; a verb without such code needs no name here.
CREATE = kind_of("create")
UPDATE = kind_of("update")
DELETE = kind_of("delete")
APPEND = kind_of("append")
