"""Models whose files do not hold all of their weights, or hold something else, are refused in one line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import ARCHITECTURES, PECULIAR, REPEATING, WINDOWED, build
from torch.testing import assert_close
from transformers import BertConfig, BertForMaskedLM, BertModel

from tba.evaluations.embeddings import Embedder
from tba.policy.names import model_directory
from tba.policy.policy import load_model, load_tokenizer
from tba.rewards.harm import load_harm_classifier
from tba.rewards.reward_model import RewardModel, check_reward_model
from tba.rewards.victim import Victim
from tba.supervised.shared import load_classifier
from tba.testing import character_tokenizer, save_tiny_classifier, save_tiny_model
from tba.types import TbaError

FAMILIES = {**ARCHITECTURES, **WINDOWED, **PECULIAR, "diffllama": REPEATING}
WEIGHTS = "model.safetensors"


def without(folder: Path, *names: str) -> None:
    """Take weights out of a saved model."""
    tensors = load_file(folder / WEIGHTS)
    assert set(names) <= set(tensors)
    kept = {name: tensor for name, tensor in tensors.items() if name not in names}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(TbaError) as caught:
        load()
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_loads_and_one_without_any_of_its_weights_does_not(family: str, tmp_path: Path) -> None:
    """Tied weights are in the files once, so a tied model is whole without its output head."""
    model = build(FAMILIES[family], shared=False)
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path)).state_dict()
    for name, tensor in model.state_dict().items():
        assert_close(loaded[name], tensor, rtol=0, atol=0)
    tensors = load_file(tmp_path / WEIGHTS)
    assert ("lm_head.weight" in tensors or "embed_out.weight" in tensors) != FAMILIES[family].tie_word_embeddings
    for name in tensors:
        save_file({n: t for n, t in tensors.items() if n != name}, tmp_path / WEIGHTS, metadata={"format": "pt"})
        assert str(tmp_path) in refusal(lambda: load_model(str(tmp_path)))


def test_the_embedded_model_is_whole() -> None:
    expected = load_file(Path(model_directory("arithmetic")) / WEIGHTS)
    loaded = load_model("arithmetic").state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in expected.items())


def test_some_of_the_missing_weights_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    build(ARCHITECTURES["llama"], shared=False).save_pretrained(tmp_path)
    names = [f"model.layers.{i}.self_attn.{part}_proj.weight" for i in (0, 1) for part in "kq"]
    without(tmp_path, *names)
    line = refusal(lambda: load_model(str(tmp_path)))
    assert all(name in line for name in names[:3])
    assert "and 1 more" in line


def test_nothing_but_the_error_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build(ARCHITECTURES["llama"], shared=False).save_pretrained(tmp_path)
    without(tmp_path, "model.norm.weight")
    refusal(lambda: load_model(str(tmp_path)))
    assert capfd.readouterr() == ("", "")


def test_a_classifier_is_no_policy(tmp_path: Path) -> None:
    save_tiny_classifier(tmp_path, ["good"], decoder=True, tie_word_embeddings=False)
    assert "lm_head.weight" in refusal(lambda: load_model(str(tmp_path)))


@pytest.mark.parametrize("num_labels", [1, 2])
@pytest.mark.parametrize("decoder", [True, False])
def test_a_classifier_without_its_head_is_no_judge(tmp_path: Path, decoder: bool, num_labels: int) -> None:
    labels = [f"label {i}" for i in range(num_labels)]
    save_tiny_classifier(tmp_path, labels, decoder=decoder)

    def judge() -> object:
        return load_harm_classifier(
            str(tmp_path), kind="classifier", label="label 0", reads_attack=False, prefix="", batch_size=2
        )

    assert judge()
    head = "score.weight" if decoder else "classifier.weight"
    without(tmp_path, head)
    assert head in refusal(judge)


def test_a_reward_model_without_its_head_is_refused(tmp_path: Path) -> None:
    save_tiny_classifier(tmp_path, ["reward"], decoder=True)
    RewardModel(str(tmp_path))
    without(tmp_path, "score.weight")
    assert "score.weight" in refusal(lambda: RewardModel(str(tmp_path)))


def test_a_guard_and_a_victim_without_a_layer_are_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(tmp_path)

    def guard() -> object:
        return load_harm_classifier(str(tmp_path), kind="guard", label="a", reads_attack=True, prefix="", batch_size=2)

    def victim() -> object:
        return Victim(
            str(tmp_path), prompt="plain", temperature=1, top_p=1, max_new_tokens=2, num_replies=1, batch_size=1, seed=0
        )

    assert guard()
    assert victim()
    without(tmp_path, "model.norm.weight")
    assert "task.classifier" in refusal(guard)
    assert "task.victim" in refusal(victim)


def save_encoder(folder: Path, *, pooler: bool) -> None:
    config = BertConfig(
        vocab_size=len(character_tokenizer()),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    (BertModel(config) if pooler else BertForMaskedLM(config)).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)


@pytest.mark.parametrize("pooler", [True, False])
def test_an_embedder_needs_all_but_the_pooler_which_it_does_not_read(tmp_path: Path, pooler: bool) -> None:
    save_encoder(tmp_path, pooler=pooler)
    first, second = Embedder(str(tmp_path))(["ab"]), Embedder(str(tmp_path))(["ab"])
    assert (first == second).all()
    norm = "embeddings.LayerNorm.weight"
    without(tmp_path, norm if pooler else f"bert.{norm}")
    line = refusal(lambda: Embedder(str(tmp_path)))
    assert norm in line
    assert "evaluation.embedding_model" in line


@pytest.mark.parametrize("start", ["decoder", "encoder without a pooler", "classifier of two labels"])
def test_a_classifier_is_trained_from_models_without_its_head(tmp_path: Path, start: str) -> None:
    if start == "decoder":
        save_tiny_model(tmp_path)
    elif start == "encoder without a pooler":
        save_encoder(tmp_path, pooler=False)
    else:
        save_tiny_classifier(tmp_path, ["good", "bad"])
    model, _ = load_classifier(str(tmp_path), seed=0)
    assert model.config.num_labels == 1
    inner = next(name for name in load_file(tmp_path / WEIGHTS) if "q_proj.weight" in name or "query.weight" in name)
    without(tmp_path, inner)
    assert inner in refusal(lambda: load_classifier(str(tmp_path), seed=0))


def test_weights_of_another_shape_are_refused_with_both(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    held = config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": held + 3}))
    line = refusal(lambda: load_model(str(tmp_path)))
    assert "model.embed_tokens.weight" in line
    assert f"({held}, " in line
    assert f"({held + 3}, " in line


class _Harmful:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return exec, ("raise SystemExit('code from a model was run')",)


@pytest.mark.parametrize("kind", ["pickled code", "not a pickle", "empty"])
def test_pickled_files_that_are_not_weights_are_told(tmp_path: Path, kind: str) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    content = {"pickled code": pickle.dumps(_Harmful()), "not a pickle": b"no pickle at all", "empty": b""}[kind]
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    assert str(tmp_path) in refusal(lambda: load_model(str(tmp_path)))


@pytest.mark.parametrize(
    "content", ["[]", "null", "5", '"text"', "{}", "{", '{"model_type": "llama", "hidden_size": "x"}']
)
def test_a_configuration_that_is_none_is_told(tmp_path: Path, content: str) -> None:
    save_tiny_classifier(tmp_path, ["reward"], decoder=True)
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "tokenizer_config.json").unlink()
    refusal(lambda: load_model(str(tmp_path)))
    refusal(lambda: RewardModel(str(tmp_path)))
    refusal(
        lambda: load_harm_classifier(str(tmp_path), kind="x", label=None, reads_attack=False, prefix="", batch_size=1)
    )
    refusal(lambda: Embedder(str(tmp_path)))
    if not content.startswith("{"):  # a tokenizer can do without most of it
        refusal(lambda: load_tokenizer(str(tmp_path)))
        assert "config.json" in refusal(lambda: check_reward_model(str(tmp_path)))
