"""TL;DR: Reddit posts to summaries. The prompt has the shape of the original task (Stiennon et al. 2020).

Plain prompts end in `TL;DR:`, so a response to one starts with a space, and so do demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tba.tasks.base import Beside, Content, Encode, Headline, NamedModel, Problem, Task, TaskSettings
from tba.tasks.read_data import Row, hold_out_last, read_rows, row_ids, source_name
from tba.types import Prompt, TbaError

if TYPE_CHECKING:
    from tba.config.search import EvaluationConfig
    from tba.config.settings import Config
    from tba.evaluations.base import Evaluator, Parts

_WRITTEN_OUT = re.compile(
    r"(?:SUBREDDIT: r/(?P<subreddit>[^\n]*)\n+)?(?:TITLE: (?P<title>[^\n]*)\n+)?POST: (?P<post>.*?)\s*TL;DR:\s*",
    re.DOTALL,
)
UNUSABLE = "empty, or too long to be cut"
_SENTENCE_END = re.compile(r"[.!?…][\"')\]]*(?=\s)")


class Settings(TaskSettings):
    """Summaries of Reddit posts (TL;DR), scored by a reward model."""

    kind: Literal["tldr"] = "tldr"
    """The kind of task. `task = "tldr"` is short for `task.kind = "tldr"`."""
    data: str
    """The file or dataset id with the posts. Its columns are `post` and, if there are any, `title`, `subreddit` and
    `summary`; or else `prompt` and `completion`, with the whole prompt written out, as in `trl-lib/tldr`."""
    eval_data: str | None = None
    """The file or dataset id with held-out posts. If empty, the last `task.num_eval` training posts are held out."""
    split: str = "train"
    """The split that is read if `task.data` is a Hugging Face dataset."""
    eval_split: str = "validation"
    """The split that is read if `task.eval_data` is a Hugging Face dataset."""
    num_eval: int = Field(256, ge=0)
    """Number of training posts that are held out if there is no `task.eval_data`. With 0, nothing is evaluated."""
    prompt_style: Literal["plain", "chat"] = "plain"
    """How a post is put to the model. `plain` is a text that ends in `TL;DR:`, for base and SFT models. `chat` is one
    message of the user, for instruct models."""
    instruction: str = "Summarize this post in one or two sentences. Write the summary only."
    """The request that comes before the post if `task.prompt_style` is `chat`."""
    max_prompt_tokens: int = Field(512, ge=1)
    """Longest prompt, in tokens. A longer post is cut at the end of a paragraph, or else of a sentence. A post whose
    first sentence does not fit is left out."""

    headline: ClassVar[Headline] = Headline(
        "win_rate",
        # A win rate never comes without its lengths and its KL: longer summaries win more often.
        beside=(
            Beside("completions/mean_length", "length", "length", ".0f"),
            Beside("reference/mean_length", "reference_length", "length of references", ".0f"),
            Beside("kl", "eval_kl", "KL", ".2f"),
            Beside("paper_perplexity", "paper_perplexity"),
        ),
    )

    def load(self, encode: Encode) -> Task:
        """Read every row. Held out: all of `eval_data`, or else the last `num_eval` usable training posts."""
        rows = read_rows(self.data, self.split)
        ids = row_ids(rows, source_name(self.data))
        problems = _problems(rows, ids, self.data, self, encode)
        num_unusable = len(rows) - len(problems)
        if self.eval_data is None:
            parts = hold_out_last(problems, self.num_eval, f"usable posts of {self.data}")
            return Task("tldr", *parts, None, _skipped(num_unusable))
        rows = read_rows(self.eval_data, self.eval_split)
        ids = row_ids(rows, f"{source_name(self.eval_data)}-eval", {problem.prompt.id for problem in problems})
        held_out = _problems(rows, ids, self.eval_data, self, encode)
        return Task("tldr", problems, held_out, None, _skipped(num_unusable + len(rows) - len(held_out)))

    def evaluator(self, parts: Parts) -> Evaluator:
        from tba.evaluations.preference import PreferenceEvaluator

        return PreferenceEvaluator(
            parts.engine,
            parts.scorer,
            parts.task.held_out[: parts.settings.num_prompts],
            num_samples=max(1, parts.settings.num_samples),
            prompts_per_batch=parts.settings.prompts_per_batch,
            num_tokens=parts.num_tokens,
            gold=parts.gold,
            reference=parts.reference() if parts.reference else None,
            # The paper's perplexity is taken at temperature 1, whatever responses are sampled at.
            untempered=parts.reference(1.0) if parts.reference else None,
        )

    def check(self, config: Config) -> None:
        if not config.reward.is_named and config.evaluation.gold_model is None:
            raise ValueError("reward is missing: name a reward model with --reward.model PATH_OR_ID")

    def models(self, evaluation: EvaluationConfig, *, to_train: bool) -> list[NamedModel]:
        found = []
        if evaluation.gold_model is not None:
            found.append(NamedModel("evaluation.gold_model", evaluation.gold_model, is_reward_model=True))
        if evaluation.reference_model is not None and not to_train:
            found.append(NamedModel("evaluation.reference_model", evaluation.reference_model))
        return found

    def as_response(self, text: str) -> str:
        return text.strip() if self.prompt_style == "chat" else f" {text.strip()}"


def _skipped(count: int) -> dict[str, int]:
    return {UNUSABLE: count} if count else {}


def _problems(rows: Sequence[Row], ids: Sequence[str], source: str, config: Settings, encode: Encode) -> list[Problem]:
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


def _problem(row: Row, id: str, config: Settings, encode: Encode) -> Problem | None:
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
    return Problem(Prompt(id, text, tokens), content, row, config.as_response(summary) if summary else None)


def _content(row: Row, post: str, config: Settings) -> Content:
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
