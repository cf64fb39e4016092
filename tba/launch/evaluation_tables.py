"""What `tba eval` prints: every number with words, its error, and the name that records and files have for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from tba.samples.text import printable

_LABELS = {
    "accuracy": "accuracy of greedy responses",
    "num_prompts": "prompts",
    "reward": "reward of greedy responses, mean",
    "failed": "responses whose reward failed",
    "completions/mean_length": "tokens in a response, mean",
    "completions/clipped_ratio": "share cut off by the length limit",
    "win_rate": "win rate against reference summaries",
    "num_compared": "summaries compared",
    "gold_reward": "score of the gold model, mean",
    "gold_failed": "responses that the gold model failed on",
    "kl": "KL to the reference, nats per response",
    "paper_perplexity": "the paper's perplexity",
    "reference/mean_length": "tokens in a reference summary, mean",
    "attack_success_rate": "share of attacks that succeed",
    "harm": "probability of harm, mean",
    "num_attacks": "attacks",
    "too_short": "attacks that are too short",
    "empty_replies": "replies without text",
    "diversity": "diversity of attacks",
    "diversity_missing": "diversity of attacks is not measured",
    "near_duplicates": "attacks nearly like an earlier one",
    "near_duplicate_rate": "share nearly like an earlier one",
    "distinct_attacks": "different attacks",
    "distinct_2": "share of word pairs that are new",
}
"""In words. The label of a reward function and of pass@k is made of its name."""
_BESIDE = ("_se", "_low", "_high")
"""Numbers that stand beside the one they belong to."""


def values_table(title: str, values: Mapping[str, Any]) -> Table:
    heads = ("", Column("value", justify="right"), Column("standard error", justify="right"))
    table = Table(*heads, Column("name", style="dim"), title_justify="left")
    table.title = Text(printable(title), style="table.title")
    for name, value in values.items():
        if not _is_beside(name, values) and not is_part(name):
            cells = (_label(name), _text(value), _error(values, name), name)
            table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def breakdown_table(values: Mapping[str, Any]) -> Table:
    table = Table("accuracy by", title="broken down", title_justify="left")
    for head in ("prompts", "accuracy", "standard error"):
        table.add_column(head, justify="right")
    for name in values:
        if is_part(name) and not name.endswith(("_se", "_n")):
            part = name.removeprefix("accuracy/")
            cells = (part, str(values[f"{name}_n"]), _text(values[name]), _error(values, name))
            table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def is_part(name: str) -> bool:
    """Whether a value is of one group of prompts, as in `accuracy/level=3`."""
    return name.startswith("accuracy/") and "=" in name


def _is_beside(name: str, values: Mapping[str, Any]) -> bool:
    return any(name.endswith(end) and name.removesuffix(end) in values for end in _BESIDE)


def _label(name: str) -> str:
    if name in _LABELS:
        return _LABELS[name]
    sampled = re.fullmatch(r"pass@(\d+)", name)
    if sampled:
        return (
            f"share of prompts solved within {sampled[1]} sampled responses"
            if sampled[1] != "1"
            else ("share of sampled responses that are right")
        )
    rewarded = re.fullmatch(r"rewards/(.+)/mean", name)
    return f"reward of {rewarded[1]}, mean" if rewarded else name.replace("_", " ")


def _error(values: Mapping[str, Any], name: str) -> str:
    """The standard error, or the interval where that says more; a dash if one value alone tells of no spread."""
    error = values.get(f"{name}_se")
    if error is None:
        return ""
    low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
    interval = f" (95 %: {_text(low)} to {_text(high)})" if low is not None and high is not None else ""
    return f"± {error:.4f}{interval}" if math.isfinite(error) else "–"


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
