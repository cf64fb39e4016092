"""Texts that end a response, whichever tokens spell them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from float64 import in_float64, to_float64
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tba.config.model import EngineConfig
from tba.config.settings import Config
from tba.config.text import parse_overrides
from tba.engines.base import generate
from tba.engines.stops import Stops, stop_tokens, tokens_that_may_end
from tba.engines.transformers import TransformersEngine
from tba.policy.policy import load_model, load_tokenizer
from tba.testing import save_tiny_model
from tba.types import Prompt, TbaError

PIECES = ["<pad>", "<eos>", "a", "b", "c", "ab", "bc", "abc", "cab", "<|end|>", " a"]


class Ahead:
    """As much of a model as `Stops` looks at: so many logits."""

    generation_config = None

    def __init__(self, num_logits: int) -> None:
        self.weight = range(num_logits)

    def get_output_embeddings(self) -> Any:
        return self


def pieces_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", additional_special_tokens=["<|end|>"]
    )


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate([*alphabet, "<eos>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def length_until_stop(stops: Stops, tokens: list[int]) -> int | None:
    """Tokens of a response that draws these, one after the other."""
    import numpy as np

    for n in range(1, len(tokens) + 1):
        so_far = np.array(tokens[:n], np.int32)
        if stops.ended(so_far[-1:].astype(np.int64), lambda place, so_far=so_far: so_far)[0]:
            return n
    return None


TOKENIZER = pieces_tokenizer()
DRAWN = st.lists(st.integers(2, len(PIECES) - 1), min_size=1, max_size=8)
TEXTS = st.lists(st.text("abc ", min_size=1, max_size=4), min_size=1, max_size=3)


@given(DRAWN, TEXTS)
@example([4, 9, 2], ["ca"])
@settings(max_examples=300, deadline=None)
def test_a_response_ends_with_the_first_token_that_completes_a_text(tokens: list[int], texts: list[str]) -> None:
    stops = Stops(Ahead(len(PIECES)), TOKENIZER, texts)  # type: ignore[arg-type]
    # With special tokens, and without them, as rewards see a response.
    whole, seen, expected = "", "", None
    for n, token in enumerate(tokens, 1):
        whole += PIECES[token]
        seen += PIECES[token] if PIECES[token] != "<|end|>" else ""
        if any(stop in text for stop in texts for text in (whole, seen)):
            expected = n
            break
    assert length_until_stop(stops, tokens) == expected


def test_a_special_token_can_be_named_by_its_text() -> None:
    stops = Stops(Ahead(len(PIECES)), TOKENIZER, ["<|end|>"])  # type: ignore[arg-type]
    assert length_until_stop(stops, [2, 3, PIECES.index("<|end|>"), 2]) == 3


@pytest.mark.parametrize("stop", ["ß", "日本", "!\n"])
def test_characters_of_several_tokens_are_found(stop: str) -> None:
    tokenizer = byte_tokenizer()
    stops = Stops(Ahead(len(tokenizer)), tokenizer, [stop])  # type: ignore[arg-type]
    before, after = (tokenizer(text, add_special_tokens=False).input_ids for text in ("höß"[:2], f"{stop}x"))
    assert length_until_stop(stops, [*before, *after]) == len(before) + len(after) - 1


def test_only_tokens_that_can_end_a_text_are_looked_at() -> None:
    found = {PIECES[token] for token in tokens_that_may_end(TOKENIZER, ["ab"])}
    assert found == {"b", "bc", "ab", "abc"}
    assert tokens_that_may_end(TOKENIZER, []) == set()
    alone = stop_tokens(Ahead(len(PIECES)), TOKENIZER, ["ab"])  # type: ignore[arg-type]
    assert {PIECES[token] for token in alone} == {"<eos>", "ab", "abc", "cab"}


@in_float64()
def test_an_engine_stops_at_texts_of_several_tokens_and_keeps_them(tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path, alphabet="abc"))

    def made(*stop: str) -> list[Any]:
        model = to_float64(load_model(folder))
        engine = TransformersEngine(
            model, load_tokenizer(folder), temperature=1.0, max_new_tokens=10, seed=0, stop=stop
        )
        return generate(engine, [Prompt("p", "", (4, 5))], 32)[0]

    free, stopped = made(), made("ab", "ca")
    assert any("ab" in r.text[:-1] or "ca" in r.text[:-1] for r in free), "else nothing is shown"
    for whole, cut in zip(free, stopped, strict=True):
        assert whole.text.startswith(cut.text), "what is sampled is the same up to there"
        ends = min((whole.text.find(stop) + 2 for stop in ("ab", "ca") if stop in whole.text), default=None)
        assert cut.text == whole.text[:ends]
        assert cut.finished == (ends is not None or whole.finished)


def test_one_text_is_taken_as_it_is_and_several_as_a_list() -> None:
    assert EngineConfig(stop="\n").stop == ("\n",)  # type: ignore[arg-type]
    assert EngineConfig(stop="a, b").stop == ("a, b",)  # type: ignore[arg-type]
    given = parse_overrides(["--engine.stop", '["</answer>", "\\n\\n"]'])
    assert Config.embedded(**given).engine.stop == ("</answer>", "\n\n")
    assert Config.embedded(engine={"stop": "[1"}).engine.stop == ("[1",)
    with pytest.raises(TbaError, match=r"engine\.stop has an empty text"):
        Config.embedded(engine={"stop": ["a", ""]})


def test_the_former_setting_is_read() -> None:
    assert Config.embedded(engine={"stop_text": "\n"}).engine.stop == ("\n",)
    assert Config.embedded(engine={"stop_text": ""}).engine.stop == ()
    assert Config.embedded(engine={"stop_text": "", "stop": ["x"]}).engine.stop == ("x",)
    with pytest.raises(TbaError, match=r"former name of engine\.stop"):
        Config.embedded(engine={"stop_text": "a", "stop": ["b"]})
