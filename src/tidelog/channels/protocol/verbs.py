"""What can be done to a message: the one list of it, which everything else is derived from."""

from typing import Literal, get_args

MutationVerb = Literal["update", "delete", "append"]
"""What can be done to a message that is there."""

Verb = Literal["create", MutationVerb]

MUTATION_VERBS: tuple[MutationVerb, ...] = get_args(MutationVerb)
VERBS: tuple[Verb, ...] = get_args(Verb)

KIND_PREFIX = "message."
"""The kind of a log entry, and of a V2 frame, is this and the verb."""

CREATE, UPDATE, DELETE, APPEND = (KIND_PREFIX + verb for verb in VERBS)
