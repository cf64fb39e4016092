"""Samples as tables for trackers of experiments, and as Markdown for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tba.samples.text import visible

Record = Mapping[str, Any]


def table_of(samples: Sequence[Record]) -> tuple[list[str], list[list[Any]]]:
    """The names of the columns, and a row for each sample. Every column has values of one type, or None."""
    parts = list(dict.fromkeys(name for sample in samples for name in sample["reward_parts"]))
    names = ["prompt", "response", "reward", *(f"rewards/{name}" for name in parts)]
    names += ["mean reward of its group", "row of the data", "weights of step", "tokens", "cut off", "prompt id"]
    rows = [
        [
            prompt_text(sample),
            visible(sample["response"]),
            float(sample["reward"]),
            *(sample["reward_parts"].get(name) for name in parts),
            float(sample["group"]["mean_reward"]),
            pairs_text({**(sample["columns"] or {}), **sample["notes"]}),
            sample["version"],
            sample["num_tokens"],
            "yes" if sample["cut_off"] else "no",
            sample["prompt_id"],
        ]
        for sample in samples
    ]
    return names, rows


def markdown_of(samples: Sequence[Record]) -> str:
    """Texts stand in blocks of code, so that nothing in them is taken for Markdown."""
    return "\n\n".join(map(_markdown, samples))


def code(text: str) -> str:
    """A block of code: what is indented stays one, whatever it holds."""
    return "\n".join(f"    {line}" for line in visible(text).split("\n"))


def prompt_text(sample: Record) -> str:
    """The prompt as a person reads it: a chat by its turns, in place of the template that the model reads."""
    messages = sample["messages"]
    if not messages:
        return visible(sample["prompt"])
    return "\n".join(f"{visible(m.get('role', ''))}: {visible(m.get('content', ''))}" for m in messages)


def parts_text(sample: Record) -> str:
    """What each reward function gave; empty if there was only one, which gave the reward itself."""
    parts = sample["reward_parts"]
    if list(parts.values()) == [sample["reward"]]:
        return ""
    return ", ".join(f"{visible(name)} {number(value)}" for name, value in parts.items())


def pairs_text(values: Mapping[str, Any], cut: Callable[[str], str] = lambda text: text) -> str:
    """Columns with their values, a line for each; texts stand without quotation marks."""
    return "\n".join(f"{visible(name)}: {cut(_value_text(value))}" for name, value in values.items())


def number(value: float | None) -> str:
    """As `f"{value:.3f}"`, but without a minus before a zero; – for None."""
    return "–" if value is None else f"{round(value, 3) + 0.0:.3f}"


def _value_text(value: Any) -> str:
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _markdown(sample: Record) -> str:
    parts = parts_text(sample)
    facts = [
        f"reward {number(sample['reward'])}" + (f" ({parts})" if parts else ""),
        f"group of {sample['group']['num_responses']}, mean {number(sample['group']['mean_reward'])}",
        f"weights of step {sample['version']}",
        f"{sample['num_tokens']} tokens" + (", cut off" if sample["cut_off"] else ""),
    ]
    blocks = [("prompt", prompt_text(sample)), ("response", sample["response"])]
    beside = pairs_text({**(sample["columns"] or {}), **sample["notes"]})
    blocks += [("row of the data", beside)] if beside else []
    return "\n\n".join([code(" · ".join(facts)), *(f"**{name}**\n\n{code(text)}" for name, text in blocks), "---"])
