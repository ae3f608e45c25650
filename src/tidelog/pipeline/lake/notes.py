"""What a commit notes beside its rows: names of application transactions, and of properties."""

from collections.abc import Mapping

APPLICATION = "tidelog"
"""Whose transaction version is the position through which a table is complete."""

SEAL = "tidelog.seal"
"""Whose transaction version is the seal of a table's files."""

LOG_ID = "tidelog.log_id"
"""Property of the table `log`: which log it was made from."""

INPUT = "tidelog.input"
"""Whose transaction version is the seal of the table that this one was made of, if it says so."""

REBUILD = "tidelog.rebuild"
"""Whose transaction version counts how often all rows of a table were replaced."""

ALTERATIONS = "tidelog.alterations"
"""Whose transaction version is the number of the last alteration that a table has."""

MODEL = "tidelog.model"
"""Whose transaction version is that of the model that states were made with."""

AGED = "tidelog.aged"
"""Whose transaction version is the position through which a table has no content any more, because
it is too old: see `horizon`."""

NOTHING: Mapping[str, int] = {}
