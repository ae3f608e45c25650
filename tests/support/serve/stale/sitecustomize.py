"""Every Python process with this folder on its path has a mistake.

Its owner does not notice that the members of a lost front have left.
"""

from tidelog.channels.decide.registry import Registry

Registry.drop = lambda *_: []  # type: ignore[method-assign]
