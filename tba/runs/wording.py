"""Numbers as people read them: counts with their noun, times of a clock."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 group`, `16 groups`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def clock(seconds: float) -> str:
    """`0:07`, `1:02:03`."""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


def number(value: float | None, form: str) -> str:
    """A dash for what is not known. What rounds to zero has no sign."""
    if value is None:
        return "–"
    text = format(value, form)
    return text.lstrip("-") if not any(digit in text for digit in "123456789") else text


def percent(share: float | None, form: str = ".0f") -> str:
    """`3 %` for 0.03."""
    return "–" if share is None else f"{number(100 * share, form)} %"
