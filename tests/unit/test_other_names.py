"""Names that other tools have for our settings are answered with ours."""

from __future__ import annotations

from collections import Counter

import pytest

from tba.config.help import setting_names
from tba.config.other_names import OTHER_NAMES, WITHOUT_EQUAL, meant_by
from tba.config.settings import load_config
from tba.config.text import parse_overrides
from tba.types import TbaError


def complaint(line: str) -> str:
    with pytest.raises(TbaError) as caught:
        load_config(None, parse_overrides(line.split()))
    return str(caught.value)


def test_every_setting_that_is_suggested_exists() -> None:
    assert set(OTHER_NAMES) <= set(setting_names())


def test_no_name_stands_for_two_settings() -> None:
    names = Counter([*(name for names in OTHER_NAMES.values() for name in names), *WITHOUT_EQUAL])
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(("ours", "other"), [(ours, other) for ours in OTHER_NAMES for other in OTHER_NAMES[ours]])
def test_a_name_of_another_tool_is_answered(ours: str, other: str) -> None:
    # One that we have too, in some section, is answered with that section.
    own = [name for name in setting_names() if name.endswith(f".{other}")]
    assert meant_by(other, setting_names()) in {f"did you mean {name}? " for name in (ours, *own)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--trainer.lr 1e-6", "unknown setting trainer.lr: did you mean trainer.learning_rate?"),
        ("--lr 1e-6", "did you mean trainer.learning_rate?"),
        ("--learning-rate 1e-6", "did you mean trainer.learning_rate?"),
        ("--num-generations 8", "did you mean searcher.num_responses?"),
        ("--max-completion-length 8", "did you mean engine.max_new_tokens?"),
        ("--per-device-train-batch-size 8", "did you mean trainer.micro_batch_tokens?"),
        ("--beta 0.1", "did you mean objective.beta?"),
        ("--trainer.beta 0.1", "did you mean objective.beta?"),
        ("--output-dir x", "did you mean run.root?"),
        ("--save-steps 8", "did you mean checkpoint.period?"),
        ("--trainer.epochs 3", "trainer.num_steps is the length of a run"),
        ("--logging-steps 3", "every step is recorded in metrics.jsonl"),
        ("--rollout.n 8", "unknown setting rollout.n: did you mean searcher.num_responses?"),
        ("--actor-rollout-ref.rollout.n 8", "searcher.num_responses"),
        ("--algorithm.kl-ctrl.kl-coef 0.1", "did you mean objective.beta?"),
        ("--max-prompt-length 8", "did you mean task.max_prompt_tokens?"),
        ("--trainer.learningrate 1", "did you mean trainer.learning_rate?"),
        ("--temperature 1", "did you mean engine.temperature?"),
        ("--batch-size 8", "did you mean trainer.num_groups?"),
        ("--train-batch-size 8", "did you mean trainer.num_groups?"),
        ("--mask-truncated-completions", "did you mean reward.cut_off?"),
        ("--attn-implementation sdpa", "did you mean model.attention?"),
        ("--actor-rollout-ref.actor.optim.lr 1e-6", "did you mean trainer.learning_rate?"),
        ("--max-off-policy-steps 8", "did you mean trainer.max_staleness?"),
        ("--early-stopping-patience 3", "did you mean evaluation.patience?"),
        ("--load-best-model-at-end", "did you mean checkpoint.keep_best?"),
        ("--top-p 0.9", "did you mean engine.top_p?"),
        ("--resume-from-checkpoint x", "`tba train --resume RUN` goes on with a run"),
        ("--num-gpus 8", "model.device and engine.device"),
        ("--fsdp full", "a model is trained on one device"),
        ("--epsilon 0.2", 'objective.kind = "grpo"'),
        ("--push-to-hub", "tba export"),
    ],
)
def test_the_command_line_answers_names_of_other_tools(line: str, said: str) -> None:
    assert said in complaint(line)


def test_a_name_that_means_nothing_gets_no_guess() -> None:
    assert complaint("--trainer.xyzzy 1") == "unknown setting trainer.xyzzy: `tba config` lists the settings"
