"""Grades a final answer against the truth: right is 1, wrong is 0. A reward function in TRL's signature.

The answer is what follows the last `####`, or the last `\\boxed{...}`; a response with neither is wrong. Plain
numbers and equal strings are settled here; only the rest pays for math-verify and sympy. Nothing here limits time
or memory (an answer may be `9^{99999}`): the reward process does that.
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
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_HUGE_POWER = re.compile(r"\^[\s{(]*[0-9]+\s*\^|\^[\s{(]*[0-9]{5,}")


def final_answer(completions: Sequence[Completion], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """1.0 or 0.0 for each completion; None where the truth itself holds no answer.

    The truth may be the bare answer, or a worked solution that ends in `#### answer` or holds `\\boxed{answer}`.
    """
    return [grade(response_text(completion), truth) for completion, truth in zip(completions, answer, strict=True)]


def grade(response: str, truth: Any) -> float | None:
    gold = _gold(truth) if isinstance(truth, str | int | float) else None
    if gold is None:
        return None
    found = extract(response)
    return float(found is not None and equal(found, gold))


def extract(text: str) -> str | None:
    """The final answer as written, or None. Of several marks the last one counts, even if its answer is cut off."""
    mark = text.rfind("####")
    boxed = text.rfind("\\boxed")
    if boxed > mark:
        return _boxed(text, boxed)
    if mark >= 0:
        return text[mark + 4 :].strip().partition("\n")[0].strip() or None
    return None


def equal(found: str, gold: str) -> bool:
    found, gold = _normal(found), _normal(gold)
    if found == gold:
        return True
    found_number, gold_number = _number(found), _number(gold)
    if found_number is not None and gold_number is not None:
        return abs(found_number - gold_number) < TOLERANCE
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


@lru_cache(maxsize=4096, typed=True)
def _gold(truth: str | int | float) -> str | None:
    text = str(truth)
    found = extract(text) if "####" in text or "\\boxed" in text else text
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


def _same_mathematics(found: str, gold: str) -> bool:
    if len(found) > MAX_ANSWER_CHARS or _HUGE_POWER.search(found):
        return False
    from math_verify import verify

    # math-verify's own time limits are alarm signals, which work in no thread and fight over one handler.
    return bool(verify(_parse(gold), _parse(found), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _parse(text: str) -> list[Any]:
    # Imported here because sympy takes most of a second, which plain numbers need not pay.
    from math_verify import LatexExtractionConfig, parse

    # It warns once that its time limit is off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # As LaTeX only: the parser for plain expressions ends in Python's `eval`, and picks single numbers out of prose.
    parsed: list[Any] = parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
    return parsed
