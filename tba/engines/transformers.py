"""The embedded engine: samples from a transformers model, step by step; what responses have in common is computed once.

A step gives each response that runs its next token. Rows that become free are taken by the next responses at once: as
long as there is something to begin, every row is busy. Responses to a prompt begin together where a few rows more make
that possible, because they share what they have in common; else some begin while the others wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tba.engines.base import Finished, Request
from tba.engines.branches import Branches, Ints
from tba.engines.decoders import CachedDecoder, Decoder, SharedPromptDecoder
from tba.engines.numbers import Keys, Numbers, response_keys, uniform
from tba.engines.packed_linear import PackedLayers, Precision
from tba.engines.rows import Rows, Underway
from tba.engines.sampling import draw_tokens
from tba.engines.stops import Stops
from tba.engines.truncation import ALL_TOKENS, Truncation
from tba.policy.policy import import_weights, uses_shared_prompt
from tba.types import NEVER_PUBLISHED, Response, Version, WeightUpdate

MORE_ROWS = 8
"""One row more for each of so many may be used to let all responses to a prompt begin together."""


class TransformersEngine:
    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        precision: Precision = "float32",
        stop: Sequence[str] = (),
        truncation: Truncation = ALL_TOKENS,
        numbers: Callable[[Keys, Ints], Numbers] = uniform,
    ) -> None:
        """`precision` is that of the copy of the weights it explores with; the model's linear layers are replaced.
        The texts in `stop` end a response, as the end-of-sequence token does.

        `truncation` leaves unlikely tokens out, but not for requests that ask for the policy itself. The
        log-probabilities of a response are those of the distribution that its tokens were really drawn from.
        `numbers` makes a number of [0, 1) from the key of a response and the place of a token: it decides the token.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._truncation = truncation
        self._seed = seed
        self._num_sampled = 0
        self._numbers = numbers
        self._stops = Stops(model, tokenizer, stop)
        self._version = NEVER_PUBLISHED
        self._layers = PackedLayers(model, precision)
        # In int8, unlike in bfloat16, a prompt's few huge activations would spoil every token after it.
        self._reads_prompts_exactly = precision == "int8"
        self._decoder: Decoder[Any] = (SharedPromptDecoder if uses_shared_prompt(model) else CachedDecoder)(model)
        self._requests: dict[int, Underway] = {}
        self._waiting: deque[Underway] = deque()
        """Requests that have responses to begin."""
        self._rows = Rows(max_new_tokens)
        self._branches = Branches()
        self._next: tuple[Ints, Ints, list[Any]] | None = None
        """What the decoder is to do in the next step."""
        self._last_logits_RV: Tensor | None = None
        """Kept until the next are there: of a large vocabulary they take tens of megabytes, which the allocator would
        give back to the system and ask for again, page by page, in each step."""
        self._full_precision = False
        """Of the responses that run: one step is either."""

    @property
    def version(self) -> Version:
        return self._version

    @property
    def num_running(self) -> int:
        return len(self._branches.active_A)

    @property
    def num_waiting(self) -> int:
        return sum(entry.num_waiting for entry in self._waiting)

    def submit(self, request: Request) -> None:
        if request.id in self._requests:
            raise ValueError(f"the engine has a request {request.id} already")
        entry = Underway(request, self._keys(request), request.temperature or self._temperature)
        self._requests[request.id] = entry
        self._waiting.append(entry)

    def collect(self, num_rows: int) -> list[Finished]:
        with torch.inference_mode():
            logits_RV = None if self._next is None else self._decoder.step(*self._next)
            self._last_logits_RV = logits_RV
            num_old, num_slots = self.num_running, self._branches.num_slots
            begun = self._begin(num_rows)
            drawn = []
            if logits_RV is not None:
                drawn.append(self._draw(logits_RV, slice(0, num_old), 0))
            if begun:
                logits = [entry.first_logits_V for entry in begun if entry.first_logits_V is not None]
                drawn.append(self._draw(torch.stack(logits), slice(num_old, None), num_slots))
            read = [entry.read for entry in begun]
            for entry in begun:
                if not entry.num_waiting:  # nobody will begin from it any more
                    entry.read = entry.first_logits_V = None
            return self._advance(np.concatenate(drawn), read) if drawn else []

    def load(self, update: WeightUpdate) -> None:
        import_weights(self._model, update.bytes_by_name)
        self._layers.pack()
        self._version = update.version
        # Whatever begins from now on begins from the prompt as the new weights read it.
        for entry in self._waiting:
            entry.read = entry.first_logits_V = None

    def abort(self, ids: Collection[int]) -> None:
        gone = [entry for id in ids if (entry := self._requests.pop(id, None)) is not None]
        if not gone:
            return
        self._waiting = deque(entry for entry in self._waiting if not any(entry is other for other in gone))
        dropped_A = np.array([self._is_gone(row) for row in self._branches.active_A.tolist()], dtype=bool)
        for row in self._branches.active_A[dropped_A].tolist():
            self._rows.end(row)
        self._branches.finish(dropped_A)
        self._stop_if_none_runs()

    def state(self) -> dict[str, Any]:
        return {"seed": self._seed, "num_sampled": self._num_sampled}

    def restore(self, state: dict[str, Any]) -> None:
        # Checkpoints of tba 0.1 hold the state of another generator; what they sampled, this one never did.
        self._seed, self._num_sampled = state.get("seed", self._seed), state.get("num_sampled", 0)

    def _keys(self, request: Request) -> Keys:
        seed = request.seed
        if seed is None:
            seed = self._num_sampled
            self._num_sampled += not request.greedy  # what is not drawn takes no number
        return response_keys([self._seed, seed], request.num_responses)

    def _begin(self, num_rows: int) -> list[Underway]:
        """Begin as many responses as there is room for; the requests they belong to, with their prompts read.

        What responses share is computed once only if they began together: half the slots with the embedded model.
        """
        room = num_rows - self.num_running
        if self.num_running and not self._decoder.refills:
            return []
        if not self.num_running and self._waiting:
            self._set_full_precision(self._waiting[0].request.full_precision)
        chosen: list[tuple[Underway, int]] = []
        for entry in self._waiting:
            if room <= 0 or entry.request.full_precision != self._full_precision:
                break
            together = entry.num_waiting <= room + num_rows // MORE_ROWS
            chosen.append((entry, entry.num_waiting if together else room))
            room -= chosen[-1][1]
        if not chosen:
            return []
        self._read([entry for entry, _ in chosen], num_rows)
        rows = [self._rows.begin(entry, count) for entry, count in chosen]
        self._branches.begin(np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(part) for part in rows]))
        while self._waiting and not self._waiting[0].num_waiting:
            self._waiting.popleft()
        return [entry for entry, _ in chosen]

    def _read(self, needed: Sequence[Underway], num_rows: int) -> None:
        """Have the decoder read these prompts, and some that come next: several take little more time than one."""
        unread = [entry for entry in needed if entry.read is None or not self._decoder.refills]
        if not unread:
            return
        if self._decoder.refills:
            num_ahead = num_rows // (2 * unread[0].request.num_responses)
            others = (entry for entry in self._waiting if entry.read is None and entry not in unread)
            unread += [entry for entry, _ in zip(others, range(num_ahead - len(unread)), strict=False)]
        self._layers.set_full_precision(self._full_precision or self._reads_prompts_exactly)
        read, logits_GV = self._decoder.read([entry.request.prompt.tokens for entry in unread])
        self._layers.set_full_precision(self._full_precision)
        for entry, one, logits_V in zip(unread, read, logits_GV, strict=True):
            entry.read, entry.first_logits_V = one, logits_V

    def _draw(self, logits_RV: Tensor, part: slice, first_slot: int) -> np.ndarray:
        """The next token of this part of the running responses; these logits are those of the slots from the first."""
        rows = self._branches.active_A[part]
        slots = self._branches.slot_A[part] - first_slot
        uniform_A = self._numbers(self._rows.key_N[rows], self._rows.length_N[rows])
        uniform_A = np.where(self._rows.greedy_N[rows], np.float32(-1), uniform_A)
        truncation = ALL_TOKENS if self._full_precision else self._truncation
        tokens_A, logprobs_A = draw_tokens(logits_RV, slots, self._rows.temperature_N[rows], uniform_A, truncation)
        self._rows.append(rows, tokens_A, logprobs_A, self._version)
        return tokens_A

    def _advance(self, tokens_A: Ints, begun: list[Any]) -> list[Finished]:
        """Responses that have drawn their last token end; the others take theirs into the next step."""
        rows = self._branches.active_A
        stops_A = self._stops.ended(tokens_A, lambda place: self._rows.tokens(int(rows[place])))
        ended_A = stops_A | (self._rows.length_N[rows] == self._max_new_tokens)
        if not ended_A.any():
            self._next = (*self._branches.extend(tokens_A), begun)
            return []
        self._branches.finish(ended_A)
        self._next = (*self._branches.extend(tokens_A[~ended_A]), begun)
        self._stop_if_none_runs()
        return self._finished(rows[ended_A], stops_A[ended_A])

    def _finished(self, rows: Ints, stopped: np.ndarray) -> list[Finished]:
        """Requests whose last response ended now."""
        done = []
        for row, by_itself in zip(rows.tolist(), stopped.tolist(), strict=True):
            entry, number = self._rows.owner(row)
            tokens, logprobs, versions = self._rows.end(row)
            entry.responses[number] = Response(tokens, logprobs, versions, "", by_itself)
            if entry.is_finished:
                del self._requests[entry.request.id]
                done.append(entry)
        return [Finished(entry.request.id, self._with_text(entry)) for entry in done]

    def _with_text(self, entry: Underway) -> list[Response]:
        ordered = [entry.responses[number] for number in range(entry.request.num_responses)]
        texts = self._tokenizer.batch_decode([r.tokens.tolist() for r in ordered], skip_special_tokens=True)
        return [
            Response(r.tokens, r.token_logprobs, r.token_versions, text, r.finished)
            for r, text in zip(ordered, texts, strict=True)
        ]

    def _is_gone(self, row: int) -> bool:
        entry, _ = self._rows.owner(row)
        return self._requests.get(entry.request.id) is not entry

    def _stop_if_none_runs(self) -> None:
        if not self.num_running:
            self._next = self._last_logits_RV = None
            self._branches = Branches()
            self._decoder.clear()

    def _set_full_precision(self, full_precision: bool) -> None:
        self._full_precision = full_precision
        self._layers.set_full_precision(full_precision)
