"""Drawing groups from the buffer (MOP: the most on-policy data with probability m, else anything, best first).

    recent branch, probability m    prompt: the next of a shuffled round of the newest merges' prompts
                                    responses: uniform among those of these merges
    whole branch, probability 1-m   prompt: uniform over all prompts in the buffer, independently
                                    responses: p = (1-u) softmax(inverse temperature x reward) + u / n, over all n

K responses are drawn without replacement. Where there are fewer than K to draw from, all K are drawn with
replacement from the same distribution, so that a drawn group always has K.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tba.buffer.gumbel import Floats, Indices, block_top_k, gumbel_max, gumbel_top_k, log_mixture, log_sum_exp
from tba.buffer.record import PromptRecord, log_weights
from tba.buffer.replay import ReplayBuffer
from tba.types import Group

LONG_LIST = 4
"""A list of more than this many blocks, and this many times K, is drawn from without looking at all of it."""
MAX_ROUNDS = 4
"""Rounds of 2K draws before a list counts as too uneven for that."""


class Draw(NamedTuple):
    """What one step is trained on."""

    groups: list[Group]
    rows: list[list[int]]
    """For each group, the arrival number of each trajectory: its row in the rollout log, counted from 0."""


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


def _draw_recent(record: PromptRecord, first_arrival: int, k: int, rng: np.random.Generator) -> Indices:
    places = record.live_places(record.first_place_since(first_arrival))
    chosen = rng.choice(len(places), k, replace=len(places) < k, shuffle=False)
    return places.start + chosen if isinstance(places, range) else places[chosen]


def _draw_whole(
    record: PromptRecord, k: int, uniform_fraction: float, inverse_temperature: float, rng: np.random.Generator
) -> Indices:
    if record.num_live > LONG_LIST * record.block_size and record.num_live >= LONG_LIST * k:
        return _draw_from_long_list(record, k, uniform_fraction, inverse_temperature, rng)
    places = record.live_places(record.start)
    rewards = record.rewards[places.start : places.stop] if isinstance(places, range) else record.rewards[places]
    log_p = mixture_log_p(rewards, uniform_fraction, inverse_temperature)
    chosen = gumbel_top_k(log_p, k, rng) if len(log_p) >= k else gumbel_max(log_p, k, rng)
    return places.start + chosen if isinstance(places, range) else places[chosen]


def _draw_from_long_list(
    record: PromptRecord, k: int, uniform_fraction: float, inverse_temperature: float, rng: np.random.Generator
) -> Indices:
    """Independent draws, those that repeat an earlier one ignored: drawing without replacement, at a cost that does
    not grow with the list. Where a few places hold nearly all the probability that would take for ever: after a
    while the rest is drawn by Gumbel top-k over blocks, from what is left."""
    sums = record.sums(inverse_temperature)
    chosen: dict[int, None] = {}
    for _ in range(MAX_ROUNDS):
        for place in sums.candidates(2 * k, uniform_fraction, rng).tolist():
            if place >= 0:
                chosen[place] = None
                if len(chosen) == k:
                    return np.fromiter(chosen, np.intp, k)
    drawn = np.fromiter(chosen, np.intp, len(chosen))
    left = sums.without(drawn)
    block, place = block_top_k(
        left.log_masses(uniform_fraction), lambda blocks: left.log_p(blocks, uniform_fraction), k - len(drawn), rng
    )
    return np.concatenate([drawn, (left.first_block + block) * record.block_size + place])


def mixture_log_p(rewards: Floats, uniform_fraction: float, inverse_temperature: float) -> Floats:
    """Logarithm of (1-u) softmax(inverse temperature x reward) + u / n."""
    scaled = log_weights(rewards, inverse_temperature)
    return log_mixture(scaled - log_sum_exp(scaled), 1 / len(rewards), uniform_fraction)


def _group(record: PromptRecord, places: Indices) -> Group:
    trajectories = tuple(t for t in map(record.trajectories.__getitem__, places.tolist()) if t is not None)
    if len(trajectories) != len(places):
        raise RuntimeError("a vacated place was drawn")
    return Group(record.prompt, trajectories)
