"""Rewards for benchmarks: the arithmetic task's own, at once and after a wait."""

from __future__ import annotations

import asyncio
from typing import Any

from tba.rewards.answer import final_answer


def quick(completions: list[str], answer: list[Any]) -> list[float | None]:
    return final_answer(completions, answer)


async def slow(completions: list[str], answer: list[Any]) -> list[float | None]:
    """As a judge behind a network would be: half a second a group, without computing."""
    await asyncio.sleep(0.5)
    return final_answer(completions, answer)
