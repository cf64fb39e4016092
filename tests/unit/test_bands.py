"""A band holds the keys and values of its slots, whatever has been done to it: compared with plain lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tba.engines import bands
from tba.engines.bands import Band

LAYERS, HEADS, REPEAT, D, P = 2, 2, 3, 4, 2
Slot = list[list[tuple[Tensor, Tensor]]]
"""For each layer, the key and the value of each token."""


class Pair:
    """A band, and its slots as lists."""

    def __init__(self, num_slots: int) -> None:
        like = [torch.empty(1, HEADS, 1, D, dtype=torch.float64)] * LAYERS
        self.band = Band(like, like)
        self.slots: list[Slot] = []
        self.begin(num_slots)

    @property
    def longest(self) -> int:
        return max(len(slot[0]) for slot in self.slots)

    def begin(self, num_slots: int) -> None:
        self.band.begin(num_slots)
        self.slots += [[[] for _ in range(LAYERS)] for _ in range(num_slots)]

    def keep(self, sources: list[int]) -> None:
        places = self.band.keep(np.array(sources))
        kept: dict[int, Slot] = {
            int(place): [list(layer) for layer in self.slots[source]]
            for place, source in zip(places, sources, strict=True)
        }
        self.slots = [kept[place] for place in range(len(sources))]

    def absorb(self, other: Pair) -> None:
        self.band.absorb(other.band)
        self.slots += other.slots

    def step(self, generator: torch.Generator) -> None:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        n = len(self.slots)
        self.band.begin_step()
        for layer in range(LAYERS):
            query, prompt_scores = normal(n, HEADS, REPEAT, D), normal(n, HEADS, REPEAT, P)
            key, value = normal(n, HEADS, 1, D), normal(n, HEADS, 1, D)
            for slot, k, v in zip(self.slots, key, value, strict=True):
                slot[layer].append((k, v))
            of_prompt, own = self.band.attend(layer, query, key, value, prompt_scores)
            for number, slot in enumerate(self.slots):
                keys, values = (torch.cat(list(parts), dim=1) for parts in zip(*slot[layer], strict=True))
                scores = torch.cat([prompt_scores[number], query[number] @ keys.transpose(1, 2)], dim=-1)
                weights = scores.softmax(dim=-1)
                assert_close(of_prompt[number], weights[..., :P], rtol=0, atol=1e-12)
                assert_close(own[number], weights[..., P:] @ values, rtol=0, atol=1e-12)
        self.band.end_step()
        assert self.band.lengths.tolist() == [len(slot[0]) for slot in self.slots]


@pytest.mark.parametrize("seed", range(12))
def test_slots_begin_part_end_and_join_without_a_difference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "BLOCK", 3)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    pairs = [Pair(2)]
    num_joined = num_of_several_lengths = 0
    for _ in range(40):
        if rng.random() < 0.3:
            pairs.append(Pair(int(rng.integers(1, 4))))
        for pair in pairs:
            if rng.random() < 0.3 and len(pair.slots) < 8:
                pair.begin(int(rng.integers(1, 3)))
            if rng.random() < 0.4:
                pair.keep(rng.integers(len(pair.slots), size=int(rng.integers(1, 7))).tolist())
        if len(pairs) > 1 and rng.random() < 0.4:
            younger, older = sorted(
                (pairs.pop(int(rng.integers(len(pairs)))) for _ in range(2)), key=lambda p: p.longest
            )
            num_of_several_lengths += len({len(slot[0]) for slot in younger.slots}) > 1
            older.absorb(younger)
            pairs.append(older)
            num_joined += 1
        for pair in pairs:
            pair.step(generator)
    assert num_joined > 3
    assert num_of_several_lengths > 0
