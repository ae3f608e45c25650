"""Text of strangers on a terminal.

A terminal obeys control characters: they move the cursor over what was said before, fill the
clipboard or turn the direction of reading. Whatever a client, a member or a server wrote is made
printable before a person sees it; `--json` escapes it anyway.
"""


def printable(text: str) -> str:
    """One line in which every character is shown and none is obeyed."""
    return "".join(each if each.isprintable() else " " for each in text)


def counted(count: int, noun: str) -> str:
    """A number and what is counted, which takes an s where there are several."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable_lines(text: str) -> str:
    """The same for text whose line ends are our own."""
    return "\n".join(map(printable, text.split("\n")))
