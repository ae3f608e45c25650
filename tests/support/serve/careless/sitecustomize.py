"""Every Python process with this folder on its path has a mistake.

Its front asks the next owner again what has no key, too.
"""

from tidelog.channels.messages import Publish

Publish.may_repeat = True  # type: ignore[assignment, method-assign]
