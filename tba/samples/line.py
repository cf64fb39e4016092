"""A sample in a few lines of fixed height, for the panel of a run that is going on, and in one line for its log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tba.samples.tables import number, parts_text, prompt_text
from tba.samples.text import one_line

Record = Mapping[str, Any]
_LABEL = 14
"""The column of the panel in which labels stand, with the space after it."""
_MAX_PLAIN = 100
_PERIOD_SECONDS = 60.0
_CUT = " … "


def best_of(samples: Sequence[Record]) -> Record | None:
    """The one of highest reward, the first of these; None if there is none."""
    return max(samples, key=lambda sample: float(sample["reward"]), default=None)


class SampleLines:
    """Three lines, whatever the sample holds and however narrow the terminal is: its reward, the prompt, the response.
    Long texts are cut in the middle."""

    def __init__(self, sample: Record) -> None:
        self._sample = sample

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, options.max_width - _LABEL)
        prompt, response = (_in_cells(text, room) for text in _prompt_and_response(self._sample))
        for label, text in (("sample", _facts(self._sample)), ("  prompt", prompt), ("  response", response)):
            line = Text.assemble((f"{label:<{_LABEL}}", "bold" if label == "sample" else "dim"), text)
            line.truncate(options.max_width, overflow="ellipsis")
            line.no_wrap = True
            yield line


def sample_lines(samples: Sequence[Record]) -> list[SampleLines]:
    """The best of these samples for the panel; nothing if there is none."""
    best = best_of(samples)
    return [] if best is None else [SampleLines(best)]


class PlainSamples:
    """Says when a log is to show a sample: the first at once, then a new one when a minute has passed."""

    def __init__(self) -> None:
        self._shown: Record | None = None
        self._since = 0.0

    def due(self, samples: Sequence[Record]) -> Iterator[str]:
        """The line to print now, if any."""
        best, now = best_of(samples), time.monotonic()
        if best is None or best is self._shown or (self._shown is not None and now - self._since < _PERIOD_SECONDS):
            return
        self._shown, self._since = best, now
        yield plain_sample(best)


def plain_sample(sample: Record) -> str:
    """One line for a log."""
    prompt, response = (_in_cells(text, _MAX_PLAIN) for text in _prompt_and_response(sample))
    return f"sample: reward {number(sample['reward'])} · {prompt} → {response}"


def _facts(sample: Record) -> str:
    parts, group = parts_text(sample), sample["group"]
    facts = [f"reward {number(sample['reward'])}" + (f" ({parts})" if parts else "")]
    answer = (sample["columns"] or {}).get("answer")
    if answer is not None:
        facts.append(f"answer {answer}")
    facts.append(f"worst of {group['num_responses']} got {number(group['lowest_reward'])}")
    facts.append(f"weights of step {sample['version']}")
    return one_line(" · ".join(facts))


def _prompt_and_response(sample: Record) -> tuple[str, str]:
    """Of a chat the last turn, which is the question."""
    messages = sample["messages"]
    prompt = messages[-1].get("content", "") if messages else prompt_text(sample)
    return one_line(prompt), one_line(sample["response"]) or "(empty)"


def _in_cells(text: str, room: int) -> str:
    """At most so many cells of the terminal, without the middle if that is too few."""
    if cell_len(text) <= room:
        return text
    half = max(0, (room - len(_CUT)) // 2)
    head = set_cell_size(text, room - len(_CUT) - half).rstrip()
    tail = set_cell_size(text[::-1], half)[::-1].lstrip()
    return head + _CUT + tail
