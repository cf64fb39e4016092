"""Grades a final answer against the truth: right is 1, wrong is 0. A reward function in TRL's signature.

The answer is what follows the last `####`, or the last `\\boxed{...}`; a response with neither is wrong, unless the
reward is one of those that read the last number. Plain numbers and equal strings are settled here; only the rest pays
for math-verify and sympy. Nothing here limits time or memory (an answer may be `9^{99999}`): the reward process does
that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]

MAX_ANSWER_CHARS = 400
"""Longer answers are compared as strings only: the parser's time grows steeply with nesting."""
TOLERANCE = Decimal("1e-6")
"""Plain numbers this close are equal, since math-verify rounds to six places."""

_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_NUMBER = re.compile(rf"[+-]?{_UNSIGNED}")
# In running text a sign belongs to a number only if nothing stands before it: `10-3` ends in 3, not in -3.
_NUMBER_IN_TEXT = re.compile(rf"(?<![0-9.])(?:(?<![\w)])[-−])?{_UNSIGNED}(?![0-9])")
_WORDS_AFTER = re.compile(rf"([+-]?{_UNSIGNED})((?:\s+[A-Za-z]{{2,}})+)")
_MULTIPLIERS = frozenset({"hundred", "thousand", "million", "billion", "trillion", "dozen", "pi", "percent", "squared"})
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}\s+[A-Za-z]{2,}")
_HUGE_POWER = re.compile(r"\^[\s{(]*[0-9]+\s*\^|\^[\s{(]*[0-9]{5,}")


def warm_up_rewards() -> None:
    """Grade two answers that are no plain numbers: the first such imports sympy, and its parts, for half a second."""
    _same_mathematics(r"\frac{1}{2}", "0.5")
    _same_mathematics("2x+1", "3")


def final_answer(completions: Sequence[Completion], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """1.0 or 0.0 for each completion; None where the truth itself holds no answer.

    The truth may be the bare answer, or a worked solution that ends in `#### answer` or holds `\\boxed{answer}`.
    """
    texts = map(response_text, completions)
    return [grade(extract(text), truth) for text, truth in zip(texts, answer, strict=True)]


def final_answer_or_last_number(
    completions: Sequence[Completion], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """As `final_answer`, but a response that marks no answer is graded by its last number. `by_last_number` counts."""
    texts = map(response_text, completions)
    return [
        grade(extract(text) if is_marked(text) else last_number_in(text), truth)
        for text, truth in zip(texts, answer, strict=True)
    ]


def by_last_number(completions: Sequence[Completion], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """1.0 for each completion that `final_answer_or_last_number` grades by its last number: to be given no weight."""
    texts = map(response_text, completions)
    return [
        None if _truth(truth) is None else float(not is_marked(text) and last_number_in(text) is not None)
        for text, truth in zip(texts, answer, strict=True)
    ]


def last_number(
    completions: Sequence[Completion], answer: Sequence[Any], finished: Sequence[bool], **columns: Any
) -> list[float | None]:
    """For short answers: 1.0 if the response ended by itself and the last number in it is right.

    One that was cut off is wrong: its last number may be half a number, and it is to learn to come to an end.
    """
    texts = map(response_text, completions)
    return [
        grade(last_number_in(text) if ended else None, truth)
        for text, truth, ended in zip(texts, answer, finished, strict=True)
    ]


def grade(found: str | None, truth: Any) -> float | None:
    """1.0 or 0.0 for an extracted answer; None where the truth itself holds no answer."""
    gold = _truth(truth)
    return None if gold is None else float(found is not None and equal(found, gold))


def extract(text: str) -> str | None:
    """The final answer as written, or None. Of several marks the last one counts, even if its answer is cut off."""
    mark = text.rfind("####")
    boxed = text.rfind("\\boxed")
    if boxed > mark:
        return _boxed(text, boxed)
    if mark >= 0:
        return text[mark + 4 :].strip().partition("\n")[0].strip() or None
    return None


def is_marked(text: str) -> bool:
    """Whether the response marks a final answer at all, be it cut off or empty."""
    return "####" in text or "\\boxed" in text


def last_number_in(text: str) -> str | None:
    numbers: list[str] = _NUMBER_IN_TEXT.findall(text)
    return numbers[-1] if numbers else None


def is_number(text: str) -> bool:
    """Whether an answer is a plain number, as `equal` reads it."""
    return _number(_normal(text)) is not None


def equal(found: str, gold: str) -> bool:
    found, gold = _normal(found), _normal(gold)
    if found == gold:
        return True
    found_number, gold_number = _number(found), _number(gold)
    if gold_number is not None:
        found_number = found_number if found_number is not None else _quantity(found)
        if found_number is not None:
            return abs(found_number - gold_number) < TOLERANCE
        if _PROSE.search(found):
            return False  # a sentence, which sympy would take for a product of letters, slowly
    return _same_mathematics(found, gold)


def response_text(completion: Completion) -> str:
    """The text to grade: the completion itself, or the last assistant message of a chat."""
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        content = message.get("content")
        if message.get("role", "assistant") == "assistant" and isinstance(content, str):
            return content
    return ""


def _truth(truth: Any) -> str | None:
    return _gold(truth) if isinstance(truth, str | int | float) else None


@lru_cache(maxsize=4096, typed=True)
def _gold(truth: str | int | float) -> str | None:
    text = str(truth)
    found = extract(text) if is_marked(text) else text
    return found if found is not None and _normal(found) else None


def _boxed(text: str, start: int) -> str | None:
    opening = _BOXED.match(text, start)
    if opening is None:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, opening.end()):
        # An escaped brace is a character of the answer (`\{1, 2\}`), not a bracket.
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[opening.end() : brace.start()].strip() or None
    return None


def _normal(text: str) -> str:
    text = " ".join(text.replace("\\$", "").replace("$", "").replace("−", "-").split())
    text = text.rstrip(".").rstrip()
    words = _TEXT.fullmatch(text)
    return words.group(1).strip() if words else text


def _number(text: str) -> Decimal | None:
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _quantity(text: str) -> Decimal | None:
    """The number of a number with words after it, `18 dollars an hour`, unless the words change it."""
    found = _WORDS_AFTER.fullmatch(text)
    if found is None or not _MULTIPLIERS.isdisjoint(found.group(2).lower().split()):
        return None
    return _number(found.group(1))


def _same_mathematics(found: str, gold: str) -> bool:
    if len(found) > MAX_ANSWER_CHARS or _HUGE_POWER.search(found):
        return False
    from math_verify import verify

    # math-verify's own time limits are alarm signals, which work in no thread and fight over one handler.
    return bool(verify(_parse(gold), _parse(found), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _parse(text: str) -> list[Any]:
    # Imported here because sympy takes half a second, which a process that only looks at this module need not pay.
    from math_verify import LatexExtractionConfig, parse

    # It warns once that its time limit is off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # As LaTeX only: the parser for plain expressions ends in Python's `eval`, and picks single numbers out of prose.
    parsed: list[Any] = parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
    return parsed
