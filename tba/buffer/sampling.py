"""Drawing groups from the buffer (MOP: the most on-policy data with probability m, else anything, best first).

    recent branch, probability m    prompt: the next of a shuffled round of the newest merges' prompts
                                    responses: uniform among those of these merges
    whole branch, probability 1-m   prompt: uniform over all prompts in the buffer, independently
                                    responses: p = (1-u) softmax(inverse temperature x reward) + u / n, over all n;
                                    equal responses by the mean of their rewards

K responses are drawn without replacement. Where there are fewer than K to draw from, all K are drawn with
replacement from the same distribution, so that a drawn group always has K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tba.buffer.gumbel import Indices, gumbel_max, gumbel_top_k, mixture_log_p
from tba.buffer.prompt_list import PromptTrajectories
from tba.buffer.replay import ReplayBuffer
from tba.types import Group

LONG_LIST = 256
"""A list of more trajectories than this, and than four times K, is drawn from by its cumulative sums. For a shorter one
they would cost more than a look at all of it."""
MAX_ROUNDS = 4
"""Rounds of 2K draws before a list counts as too uneven for that."""


class Draw(NamedTuple):
    """What one step is trained on."""

    groups: list[Group]
    rows: list[list[int]]
    """For each group, the arrival number of each trajectory: its row in the rollout log, counted from 0."""


class Arrived(NamedTuple):
    """A group with the row of the rollout log where it begins."""

    row: int
    group: Group


def draw(
    buffer: ReplayBuffer,
    *,
    num_groups: int,
    group_size: int,
    recent_fraction: float,
    uniform_fraction: float,
    inverse_temperature: float,
    rng: np.random.Generator,
) -> Draw:
    """Groups of exactly `group_size` trajectories. ValueError if the buffer is empty.

    The recent branch becomes the whole one when nothing recent is left in the buffer.
    """
    if not len(buffer):
        raise ValueError("cannot draw from an empty buffer")
    drawn = Draw([], [])
    for is_recent in rng.random(num_groups) < recent_fraction:
        record = buffer.pick_recent_prompt(rng) if is_recent else None
        if record is not None:
            places = _draw_recent(record, buffer.recent_arrival, group_size, rng)
        else:
            record = buffer.pick_prompt(rng)
            places = _draw_whole(record, group_size, uniform_fraction, inverse_temperature, rng)
        drawn.groups.append(_group(record, places))
        drawn.rows.append(record.arrivals[places].tolist())
    return drawn


def draw_each_once(arrived: Sequence[Arrived], group_size: int, rng: np.random.Generator) -> Draw:
    """Each of these groups once, in random order, with `group_size` of its trajectories, uniform.

    The generator is used as `draw` uses it for recent groups: of different prompts both draw the same.
    """
    drawn = Draw([], [])
    rng.random(len(arrived))
    for i in reversed(rng.permutation(len(arrived))):
        row, group = arrived[i]
        chosen = _uniform(len(group.trajectories), group_size, rng).tolist()
        drawn.groups.append(Group(group.prompt, tuple(group.trajectories[j] for j in chosen)))
        drawn.rows.append([row + j for j in chosen])
    return drawn


def _uniform(count: int, k: int, rng: np.random.Generator) -> Indices:
    return rng.choice(count, k, replace=count < k, shuffle=False)


def _draw_recent(record: PromptTrajectories, first_arrival: int, k: int, rng: np.random.Generator) -> Indices:
    places = record.live_places(record.first_place_since(first_arrival))
    chosen = _uniform(len(places), k, rng)
    return places.start + chosen if isinstance(places, range) else places[chosen]


def _draw_whole(
    record: PromptTrajectories, k: int, uniform_fraction: float, inverse_temperature: float, rng: np.random.Generator
) -> Indices:
    if record.num_live > LONG_LIST and record.num_live >= 4 * k:
        return _draw_from_long_list(record, k, uniform_fraction, inverse_temperature, rng)
    places = record.live_places(record.start)
    tilts = record.tilts() if isinstance(places, range) else record.tilts()[places - record.start]
    log_p = mixture_log_p(tilts, uniform_fraction, inverse_temperature)
    chosen = gumbel_top_k(log_p, k, rng) if len(log_p) >= k else gumbel_max(log_p, k, rng)
    return places.start + chosen if isinstance(places, range) else places[chosen]


def _draw_from_long_list(
    record: PromptTrajectories, k: int, uniform_fraction: float, inverse_temperature: float, rng: np.random.Generator
) -> Indices:
    """Independent draws, those that repeat an earlier one ignored, which is drawing without replacement. Where a few
    places hold nearly all the probability that would take for ever: after a while the rest is drawn by Gumbel top-k
    from what is left."""
    cumulative = record.cumulative(uniform_fraction, inverse_temperature)
    chosen: dict[int, None] = {}
    for _ in range(MAX_ROUNDS):
        for place in cumulative.searchsorted(rng.random(2 * k) * cumulative[-1], side="right").tolist():
            if place < len(cumulative):  # the product may be rounded up to the whole sum: no draw
                chosen[place] = None
            if len(chosen) == k:
                return record.start + np.fromiter(chosen, np.intp, k)
    drawn = np.fromiter(chosen, np.intp, len(chosen))
    log_p = record.log_p(uniform_fraction, inverse_temperature)
    log_p[drawn] = -np.inf
    return record.start + np.concatenate([drawn, gumbel_top_k(log_p, k - len(drawn), rng)])


def _group(record: PromptTrajectories, places: Indices) -> Group:
    trajectories = tuple(t for t in map(record.trajectories.__getitem__, places.tolist()) if t is not None)
    if len(trajectories) != len(places):
        raise RuntimeError("a vacated place was drawn")
    return Group(record.prompt, trajectories)
