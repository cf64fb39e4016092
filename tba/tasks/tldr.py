"""TL;DR: Reddit posts to summaries. The prompt has the shape of the original task (Stiennon et al. 2020).

Plain prompts end in `TL;DR:`, so a response to one starts with a space, and so do demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tba.config_tasks import TldrTaskConfig
from tba.tasks.base import Content, Encode, Problem, Task
from tba.tasks.rows import Row, read_rows, row_ids, source_name
from tba.types import Prompt, TbaError

_WRITTEN_OUT = re.compile(
    r"(?:SUBREDDIT: r/(?P<subreddit>[^\n]*)\n+)?(?:TITLE: (?P<title>[^\n]*)\n+)?POST: (?P<post>.*?)\s*TL;DR:\s*",
    re.DOTALL,
)
UNUSABLE = "empty, or too long to be cut"
_SENTENCE_END = re.compile(r"[.!?…][\"')\]]*(?=\s)")


def load(config: TldrTaskConfig, encode: Encode) -> Task:
    """Read every row. Held out: all of `eval_data`, or else the last `num_eval` usable training posts."""
    rows = read_rows(config.data, config.split)
    ids = row_ids(rows, source_name(config.data))
    problems = _problems(rows, ids, config.data, config, encode)
    num_unusable = len(rows) - len(problems)
    if config.eval_data is not None:
        rows = read_rows(config.eval_data, config.eval_split)
        ids = row_ids(rows, f"{source_name(config.eval_data)}-eval", {problem.prompt.id for problem in problems})
        held_out = _problems(rows, ids, config.eval_data, config, encode)
        return Task("tldr", problems, held_out, None, _skipped(num_unusable + len(rows) - len(held_out)))
    num_train = len(problems) - config.num_eval
    if num_train < 1:
        raise TbaError(
            f"task.num_eval = {config.num_eval} leaves none of the {len(problems)} usable posts of {config.data} to "
            "train on: lower task.num_eval, or give task.eval_data"
        )
    return Task("tldr", problems[:num_train], problems[num_train:], None, _skipped(num_unusable))


def _skipped(count: int) -> dict[str, int]:
    return {UNUSABLE: count} if count else {}


def _problems(
    rows: Sequence[Row], ids: Sequence[str], source: str, config: TldrTaskConfig, encode: Encode
) -> list[Problem]:
    numbered = enumerate(zip(rows, ids, strict=True), 1)
    made = (_problem(_fields(row, f"{source}, row {number}"), id, config, encode) for number, (row, id) in numbered)
    return [problem for problem in made if problem is not None]


def _fields(row: Row, place: str) -> Row:
    """The row with `post` in it. A prompt that is already written out is taken apart, so that its post can be cut."""
    if "post" in row:
        return row
    written = row.get("prompt")
    if not isinstance(written, str):
        raise TbaError(f"{place} has neither a column 'post' nor a 'prompt' of text: it has {', '.join(row)}")
    parts = _WRITTEN_OUT.fullmatch(written)
    if parts is None:
        raise TbaError(f"{place}, column 'prompt' does not read SUBREDDIT: … TITLE: … POST: … TL;DR: as a TL;DR prompt")
    return {**row, **parts.groupdict(), "summary": row.get("summary", row.get("completion"))}


def _problem(row: Row, id: str, config: TldrTaskConfig, encode: Encode) -> Problem | None:
    """None: there is nothing to summarise, or not even the first sentence fits."""

    @cache
    def encoded(post: str) -> tuple[Content, str, tuple[int, ...]]:
        content = _content(row, post, config)
        return content, *encode(content)

    def fits(post: str) -> bool:
        return len(encoded(post)[2]) <= config.max_prompt_tokens

    post = shorten(_text(row.get("post")), fits)
    if not post:
        return None
    content, text, tokens = encoded(post)
    summary = _text(row.get("summary"))
    return Problem(Prompt(id, text, tokens), content, row, as_response(summary, config) if summary else None)


def _content(row: Row, post: str, config: TldrTaskConfig) -> Content:
    subreddit, title = _text(row.get("subreddit")), _text(row.get("title"))
    lines = [
        f"SUBREDDIT: r/{subreddit.removeprefix('r/')}" if subreddit else "",
        f"TITLE: {title}" if title else "",
        f"POST: {post}",
    ]
    written = "\n\n".join(line for line in lines if line)
    if config.prompt_style == "plain":
        return f"{written}\n\nTL;DR:"
    return [{"role": "user", "content": f"{config.instruction}\n\n{written}"}]


def as_response(summary: str, config: TldrTaskConfig) -> str:
    """A summary as the model writes it after its prompt."""
    return summary.strip() if config.prompt_style == "chat" else f" {summary.strip()}"


def shorten(post: str, fits: Callable[[str], bool]) -> str:
    """The longest beginning that fits and ends with a paragraph, or failing that with a sentence; else nothing."""
    if not post or fits(post):
        return post
    paragraph_ends = [match.start() for match in re.finditer(r"\n", post)]
    sentence_ends = [match.end() for match in _SENTENCE_END.finditer(post)]
    return _longest(post, paragraph_ends, fits) or _longest(post, sentence_ends, fits)


def _longest(post: str, ends: Sequence[int], fits: Callable[[str], bool]) -> str:
    """By bisection: of two beginnings, if the longer one fits so does the shorter."""
    low, high = 0, len(ends)  # the first `low` beginnings fit, those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        if fits(post[: ends[middle]].rstrip()):
            low = middle + 1
        else:
            high = middle
    return post[: ends[low - 1]].rstrip() if low else ""


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
