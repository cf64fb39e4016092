"""Text of models, data and files of others, made fit for a line of a terminal: nothing in it can move the cursor or
write a title. It still has to be given to rich as `Text`, which reads no markup in it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Line breaks, escape sequences and other control characters as they are written in source code."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
