"""The Trainer's choice of samples: a few responses of what it has just merged, at a bounded rate.

They are a record of `metrics.jsonl`, which is the one source of the panel and of all tables of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tba.samples.bounded import bounded_json
from tba.samples.sample import GroupRewards, Sample, loaded, named_parts
from tba.samples.text import shortened
from tba.types import Group, PromptRow

MAX_TABLES = 100
"""Tables of samples in a run, about: one in so many of its steps."""
MAX_TEXT = 2_000
"""Characters of a prompt and of a response in such a table."""


_MAX_MESSAGES = 20


class SampleChooser:
    """Says when a merge is to be shown, and which of its responses: of some groups the best and the worst one."""

    def __init__(self, num: int, num_steps: int, row_of: Callable[[str], PromptRow | None]) -> None:
        """`num` responses at a time, at most; 0 for none."""
        self._num = num
        self._period = max(1, -(-num_steps // MAX_TABLES))
        self._row_of = row_of
        self._shown = -1
        """The newest of the periods of the run that has been shown."""

    def resume(self, step: int) -> None:
        """A run that goes on at this step has shown what was merged up to there."""
        self._shown = step // self._period

    def choose(self, groups: Sequence[Group], step: int) -> list[dict[str, Any]]:
        """Samples of the groups that were merged after this step; none if a table of this time is there already."""
        if not self._num or not groups or step // self._period <= self._shown:
            return []
        self._shown = step // self._period
        chosen: list[tuple[Group, int]] = []
        for group in _spread(groups, -(-self._num // 2)):
            rewards = [trajectory.reward for trajectory in group.trajectories]
            places = {rewards.index(max(rewards)): None, rewards.index(min(rewards)): None}
            chosen += [(group, place) for place in places]
        return [self._record(group, place) for group, place in chosen[: self._num]]

    def _record(self, group: Group, place: int) -> dict[str, Any]:
        return _bounded(sample_of(group, place, self._row_of(group.prompt.id))).record()


def sample_of(group: Group, place: int, row: PromptRow | None) -> Sample:
    """One trajectory of a group as a sample."""
    trajectory, about = group.trajectories[place], group.about
    response = trajectory.response
    return Sample(
        prompt_id=group.prompt.id,
        prompt=group.prompt.text,
        messages=loaded(row.messages) if row else None,
        response=response.text,
        reward=trajectory.reward,
        reward_parts=named_parts(about.reward_names, trajectory.reward_parts),
        group=GroupRewards.of([t.reward for t in group.trajectories]),
        columns=loaded(row.columns) if row else None,
        notes=loaded(about.notes[place]) if about.notes else {},
        version=response.version,
        num_tokens=len(response),
        cut_off=not response.finished,
        on_policy=response.on_policy,
        source=group.source,
    )


def _bounded(sample: Sample) -> Sample:
    messages = sample.messages
    if messages is not None:
        messages = messages[-_MAX_MESSAGES:]
        room = MAX_TEXT // len(messages)
        messages = [{"role": m.get("role", ""), "content": shortened(m.get("content", ""), room)} for m in messages]
    return replace(
        sample,
        prompt=shortened(sample.prompt, MAX_TEXT),
        messages=messages,
        response=shortened(sample.response, MAX_TEXT),
        columns=None if sample.columns is None else loaded(bounded_json(sample.columns, MAX_TEXT)),
        notes=loaded(bounded_json(sample.notes, MAX_TEXT)),
    )


def _spread(groups: Sequence[Group], num: int) -> list[Group]:
    """Some of the groups, evenly spread, of different prompts as far as may be."""
    by_prompt = list({group.prompt.id: group for group in groups}.values())
    chosen = by_prompt[:: max(1, len(by_prompt) // num)][:num]
    if len(chosen) < num:
        ids = set(map(id, chosen))
        chosen += [group for group in groups if id(group) not in ids][: num - len(chosen)]
    return chosen
