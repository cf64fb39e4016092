"""What a run takes of the memory, against what a pass really keeps; and the pass that is chosen by it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.memory import everything_kept, kept_bytes
from benchmarks.models import balance_of, group, prompts
from tba.build.learner import _checkpoint_layers
from tba.config.settings import Config, parse_config
from tba.config.training import USUAL_PASS
from tba.launch import memory
from tba.launch.local import _exit_of
from tba.launch.memory import SHARE, choose, free_memory, settle_memory
from tba.launch.memory_estimate import PROMPT_TOKENS, Shape, activations_per_token, estimate, shape_of
from tba.policy import recompute
from tba.policy.attention import SHARED_PROMPT
from tba.policy.policy import Policy
from tba.runs.metrics import read_metrics, resident_megabytes
from tba.runs.run_config import read_run_config, write_run_config
from tba.testing import save_tiny_model
from tba.types import TbaError

SIZES: dict[str, Any] = {"vocab_size": 64, "num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4}
LLAMA = LlamaConfig(**SIZES, intermediate_size=384, num_key_value_heads=2)
QWEN3 = Qwen3Config(**SIZES, intermediate_size=256, num_key_value_heads=4, head_dim=64)
PROMPT, K, LENGTH = 20, 4, 32
SMOLLM2 = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49_152,
    "tie_word_embeddings": True,
}


def made(config: Any) -> PreTrainedModel:
    model = (LlamaForCausalLM if config is LLAMA else Qwen3ForCausalLM)(config).eval()
    model.set_attn_implementation(SHARED_PROMPT)
    return model


def counted(model: PreTrainedModel, *, bf16: bool = False) -> float:
    """Bytes that a forward pass of one group keeps of each token."""
    rng = np.random.default_rng(0)
    [prompt] = prompts(1, PROMPT, 64, rng)
    answered = group(prompt, np.full(K, LENGTH), 64, rng)
    policy = Policy(model, chunk_tokens=256, bf16=bf16)
    balance_of(policy, answered, 0.1).value.backward()  # what a layer's derivatives do not read is known after one pass
    return kept_bytes(lambda: balance_of(policy, answered, 0.1).value) / (PROMPT + K * LENGTH)


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("bf16", [False, True])
def test_activations_are_estimated_as_they_are_counted(
    config: Any, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = shape_of(config.to_dict())
    assert shape is not None
    monkeypatch.setattr(recompute, "WORTH_THE_CALLS", 0)
    expected = activations_per_token(shape, checkpointing=False, recompute=True, bf16=bf16)
    assert counted(made(config), bf16=bf16) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_so_are_those_of_small_passes_and_of_gradient_checkpointing(config: Any) -> None:
    shape = shape_of(config.to_dict())
    assert shape is not None
    with everything_kept():
        everything = activations_per_token(shape, checkpointing=False, recompute=False, bf16=False)
        assert counted(made(config)) == pytest.approx(everything, rel=0.25)
    model = made(config)
    _checkpoint_layers(model)
    least = activations_per_token(shape, checkpointing=True, recompute=True, bf16=False)
    # Sines and cosines of positions are kept once, and are not counted: with so few layers they show.
    assert counted(model) == pytest.approx(least, rel=0.2)


def test_the_limit_of_recomputing_is_that_of_the_policy() -> None:
    from tba.launch import memory_estimate

    assert recompute.WORTH_THE_CALLS == memory_estimate._WORTH_RECOMPUTING


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_weights_are_counted_from_the_sizes(config: Any) -> None:
    shape = shape_of(config.to_dict())
    assert shape is not None
    assert shape.num_weights == pytest.approx(sum(p.numel() for p in made(config).parameters()), rel=0.02)


def smollm2() -> Shape:
    shape = shape_of(SMOLLM2)
    assert shape is not None
    assert shape.num_weights == pytest.approx(134.5e6, rel=0.01)
    return shape


def settings(**sections: Any) -> Config:
    return parse_config({"model": {"path": "org/model"}}, sections)


def test_the_estimate_agrees_with_a_real_model_of_135_million_weights() -> None:
    """Measured: about 1 MB a token of a pass; a Trainer of 3.1 GB with 552 tokens, and a Searcher of 3.3 GB."""
    plan = estimate(settings(), smollm2(), 2048)
    assert plan.per_token == pytest.approx(1e6, rel=0.15)
    tiny = settings(searcher={"prompts_per_batch": 2, "num_responses": 8}, trainer={"group_size": 8})
    small = estimate(tiny, smollm2(), 600)
    assert small.trainer == pytest.approx(3.1e9, rel=0.25)
    assert small.searcher == pytest.approx(3.3e9, rel=0.25)


def test_the_estimate_agrees_with_the_quick_start() -> None:
    """Measured while it ran: anonymous memory of a Trainer of 3.4 GB at step 10 and of 4.2 GB at step 26, of a Searcher
    of 2.4 GB, and 1.1 GB that they share."""
    plan = estimate(quick_start(), smollm2(), 1024)
    assert plan.trainer == pytest.approx(4.2e9, rel=0.2)
    assert plan.searcher == pytest.approx(2.4e9, rel=0.2)
    assert plan.published == pytest.approx(1.08e9, rel=0.05)


def quick_start() -> Config:
    return settings(
        model={"precision": "bfloat16"},
        engine={"precision": "bfloat16", "max_new_tokens": 32},
        searcher={"num_responses": 8, "prompts_per_batch": 4},
        trainer={"num_groups": 4, "group_size": 8},
    )


def test_no_pass_has_more_than_a_step() -> None:
    whole, more = (estimate(quick_start(), smollm2(), tokens) for tokens in (4 * (8 * 32 + PROMPT_TOKENS), 1 << 20))
    assert more == whole
    assert estimate(quick_start(), smollm2(), 1024).trainer < whole.trainer


def test_what_saves_memory_lowers_the_estimate() -> None:
    plain = estimate(settings(), smollm2(), 2048)
    assert estimate(settings(model={"gradient_checkpointing": True}), smollm2(), 2048).per_token < plain.per_token / 3
    assert estimate(settings(model={"lora_rank": 8}), smollm2(), 2048).fixed < plain.fixed / 2
    assert estimate(settings(engine={"dtype": "bfloat16"}), smollm2(), 2048).searcher < plain.searcher
    assert estimate(settings(searcher={"prompts_per_batch": 1}), smollm2(), 2048).searcher < plain.searcher
    assert estimate(settings(reference={"where": "learner"}), smollm2(), 2048).searcher < plain.searcher


# ---------------------------------------------------------------------------------------------------------------------
# The choice
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [1e9, 1.2e10, 1.4e10, 1e12])
def test_a_pass_is_a_whole_group_or_what_fits(free: float) -> None:
    config = settings()
    plan = estimate(config, smollm2(), USUAL_PASS)
    tokens = choose(config, plan, free)
    assert tokens % 256 == 0
    assert 256 <= tokens <= 16 * 256 + 256
    if tokens > 256:
        assert estimate(config, smollm2(), tokens).total <= SHARE * free
    if free == 1e12:
        assert tokens == 16 * 256 + 256


def run_with(tmp_path: Path, config: Config) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    write_run_config(run, config)
    return run


def test_what_was_chosen_stands_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "has_gpu", lambda: False)
    config = parse_config({"model": {"path": str(save_tiny_model(tmp_path / "tiny"))}})
    assert config.trainer.micro_batch_tokens == "auto"
    run = run_with(tmp_path, config)
    settled = settle_memory(config, run, None, free=1e12)
    assert settled.trainer.micro_batch_tokens == 16 * 256 + 256
    assert read_run_config(run) == settled
    assert settle_memory(settled, run, None, free=1.0) == settled, "a resume keeps it"
    assert read_metrics(run) == [], "a model this small has nothing to tell"


@pytest.mark.parametrize("why", ["repeatable", "gpu"])
def test_where_the_machine_must_not_decide_it_is_as_usual(tmp_path: Path, why: str) -> None:
    config = settings(model={"path": "arithmetic", "device": "cuda" if why == "gpu" else "auto"})
    run = run_with(tmp_path, config)
    settled = settle_memory(config, run, None, repeatable=why == "repeatable", free=1e12)
    assert settled.trainer.micro_batch_tokens == USUAL_PASS


def test_a_real_model_says_what_it_will_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_num_weights", lambda path: 134_515_008)
    monkeypatch.setattr(memory, "_model_config", lambda config: SMOLLM2)
    config = settings(trainer={"micro_batch_tokens": 16_384})
    run = run_with(tmp_path, config)
    for free in (64e9, 8e9):
        assert settle_memory(config, run, None, free=free) == config
    plenty, little = (record["message"] for record in read_metrics(run))
    assert "of 64.0 GB that are free" in plenty
    assert "trainer.micro_batch_tokens = 16384," in plenty
    assert "too much" not in plenty
    assert "too much: lower trainer.micro_batch_tokens" in little


def test_a_wrong_number_of_tokens_is_refused() -> None:
    for wrong in (0, -3, "many", 2.5, True):
        with pytest.raises(TbaError, match=r"trainer\.micro_batch_tokens = .*use auto, or a whole number"):
            settings(trainer={"micro_batch_tokens": wrong})
    assert settings(trainer={"micro_batch_tokens": "4096"}).trainer.pass_tokens == 4096


# ---------------------------------------------------------------------------------------------------------------------
# The machine
# ---------------------------------------------------------------------------------------------------------------------


def test_free_memory_is_what_the_system_and_a_container_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert free_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    assert free_memory() == 1_024_000
    (tmp_path / "memory.current").write_text("100\n")
    for limit, free in (("max\n", 1_024_000), ("600\n", 500), ("50\n", 0)):
        (tmp_path / "memory.max").write_text(limit)
        assert free_memory() == free


def test_a_process_that_was_killed_is_told_with_what_it_held(tmp_path: Path) -> None:
    killed = _exit_of("trainer", -9, tmp_path, 3.14e9)
    assert killed.maybe_out_of_memory
    assert "was killed by signal 9 (SIGKILL) while it held 3.1 of the machine's" in killed.how
    assert "held" not in _exit_of("trainer", -9, tmp_path).how
    assert "held" not in _exit_of("trainer", 1, tmp_path, 3.14e9).how


def test_memory_of_a_process_that_is_gone_is_unknown() -> None:
    assert math.isnan(resident_megabytes(0))
