"""Text of models, data and files of others, made fit for a terminal and for a limited room. Knows nothing of runs.

It still has to be given to rich as `Text`, which reads no markup in it.
"""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """With every character written out that a terminal obeys or does not show, such as `\\x1b`. Line breaks stay."""
    if text.isprintable():
        return text
    return "".join(map(_visible_character, text))


def printable(text: str) -> str:
    """The same for names and paths, in which a line break is written out too."""
    return visible(text).replace("\n", "\\n")


def one_line(text: str) -> str:
    """The same as one line, with ⏎ for the line breaks."""
    return visible(text.strip().replace("\r\n", "\n")).replace("\n", " ⏎ ")


def shortened(text: str, limit: int, remedy: str = "") -> str:
    """At most `limit` characters of the text: what is too much is left out in the middle, where a note says so.
    `remedy` says how to see it all."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    end = limit // 2
    return text[: limit - end] + f" [… {left_out:,} characters left out{remedy} …] " + text[len(text) - end :]


def _visible_character(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    if character == "\t":
        return "    "
    if unicodedata.category(character) == "Zs":  # spaces of other widths
        return " "
    return character.encode("unicode_escape").decode("ascii")
