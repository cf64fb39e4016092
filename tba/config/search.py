"""Settings of what Searchers do: exploring, scoring, evaluating."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tba.config.section import CutOff, Device, FloatList, Section, StringList


class SearcherConfig(Section):
    """The Searchers (rollout workers): processes that generate responses and have them scored."""

    num_searchers: int = Field(1, ge=1)
    """Number of Searchers (rollout workers). Each is a process of its own."""
    num_responses: int = Field(16, ge=2)
    """Responses generated for each prompt (S in the paper)."""
    prompts_per_batch: int = Field(8, ge=1)
    """Prompts that a Searcher works on at a time, so that it generates at most `searcher.prompts_per_batch` times
    `searcher.num_responses` responses at once. A response that ends makes room for the next, of the same prompt or of
    another."""
    prompts: Literal["shuffle", "solve_rate"] = "shuffle"
    """Which prompts Searchers explore. `shuffle` walks through all of them in a random order, then through all of them
    again. `solve_rate` prefers prompts whose responses get different rewards, as those that are solved sometimes, and
    comes back to them. Prompts that were not tried yet count as the best, and every prompt keeps a share."""
    temperature_fraction: float = Field(0.0, ge=0, le=1)
    """Share of prompts, from 0 to 1, whose responses are sampled for exploration at a random temperature between
    `searcher.temperature_low` and `searcher.temperature_high`. Responses to all other prompts are sampled at
    `engine.temperature`, and training always uses log-probabilities at `engine.temperature`."""
    temperature_low: float = Field(0.7, gt=0)
    """Lowest temperature of responses that are sampled for exploration; see `searcher.temperature_fraction`."""
    temperature_high: float = Field(2.0, gt=0)
    """Highest temperature of responses that are sampled for exploration; see `searcher.temperature_fraction`."""
    skip_equal_rewards: bool = False
    """Whether to leave out groups whose rewards are all equal. They teach the policy nothing but to stay close to the
    reference, and where right responses are rare most groups are like this. Of `searcher.prompts_per_batch` groups in a
    row at least one is kept, so that a run always moves on."""

    @model_validator(mode="after")
    def _check(self) -> SearcherConfig:
        if self.temperature_low > self.temperature_high:
            raise ValueError("searcher.temperature_low is above searcher.temperature_high: exchange them")
        return self


class RewardConfig(Section):
    """How responses are scored. `reward = "module:function"` is short for `reward.functions`."""

    functions: StringList = ()
    """Reward functions, each as `module:function` or `file.py:function`. If none is named, the reward is
    `reward.model`, or else the task's own."""
    model: str | None = None
    """A reward model: a Hugging Face directory or id of a sequence classifier with one output. Its score of prompt and
    response is the reward. If `reward.functions` are named too, the sum of all is."""
    weights: FloatList = ()
    """Weights of `reward.functions`, and after them of `reward.model`, in the sum that is the reward. If empty, each is
    1."""
    normalize_mean: float = 0.0
    """Subtracted from every score of `reward.model`. The mean score of reference responses is a usual choice: these
    then score 0 on average."""
    normalize_std: float = Field(1.0, gt=0)
    """Divides every score of `reward.model`, after `reward.normalize_mean` is subtracted from it."""
    cut_off: CutOff = "score"
    """What happens to a response that the length limit (`engine.max_new_tokens`) cut off. `score` treats it like any
    other. `drop` leaves it out of its group, so that it is not trained on. A number, such as −1, replaces its reward,
    whatever functions and models are summed. Evaluations use the number too, and never leave a response out."""
    no_eos_score: float | None = None
    """Score of `reward.model` for a response that the length limit cut off. It replaces the normalised score of the
    model within the sum; `reward.cut_off` replaces the whole sum, and where the model is the only reward both mean the
    same. The paper has −1. If empty, the model scores a response that was cut off like any other."""
    model_batch_size: int = Field(16, ge=1)
    """Responses that `reward.model` scores in one batch."""
    model_max_tokens: int | None = Field(None, ge=1)
    """Longest input of `reward.model`, in tokens. Longer ones lose their beginning and are counted. If empty, it is the
    model's context length."""
    model_device: Device = "auto"
    """Device of the reward model, such as `cuda:1`. `auto` is that of the Searcher's engine."""
    is_random: bool = False
    """Whether the reward gives equal responses different numbers, as a judge that is sampled does. A run whose draws
    prefer high rewards then says that high rewards are partly luck, and which setting to change. If false, a run says
    so when it has seen two equal responses with different rewards."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Time limit for scoring one group of responses. A group that takes longer is dropped. A reward function that is
    not `async def` is then ended by killing its process."""
    start_seconds: float = Field(120.0, gt=0)
    """Time limit for a reward process to import its functions and load its models."""
    dry_call: bool = True
    """Whether `reward.functions` are called before a run starts, once and in a process of their own, on two made-up
    responses to the first prompt. What is wrong with a function then shows at once. Switch it off for a function that
    cannot score texts of any kind, or whose call is expensive."""
    num_processes: int = Field(1, ge=1)
    """Reward processes of each Searcher. A process scores one group at a time, or several if functions are `async def`,
    which is the way to wait for a judge, a sandbox or a network. Raise it when a run says that rewards hold a Searcher
    up. Each process holds a copy of the reward model, if there is one."""

    @property
    def is_named(self) -> bool:
        return bool(self.functions) or self.model is not None

    @model_validator(mode="after")
    def _check(self) -> RewardConfig:
        count = len(self.functions) + (self.model is not None)
        if self.weights and len(self.weights) != count:
            what = "reward.functions" + (" and reward.model" if self.model is not None else "")
            raise ValueError(
                f"reward.weights has {len(self.weights)} numbers for {count} {what}: give one weight for each function"
            )
        if self.no_eos_score is not None and self.cut_off != "score":
            raise ValueError(
                "reward.cut_off and reward.no_eos_score both say what a response that was cut off gets: leave one out"
            )
        return self


class EvaluationConfig(Section):
    """Evaluation on held-out prompts, which a Searcher does while the Trainer goes on."""

    period: int = Field(50, ge=0)
    """Steps between evaluations. The first and the last weights are always evaluated as well. With 0 nothing is
    evaluated."""
    patience: int = Field(0, ge=0)
    """Evaluations in a row without a better result after which the run ends early, in order and with a checkpoint. The
    result is the number that the task is judged by. With 0, a run makes all its steps. A run that has ended so can be
    resumed with a larger number."""
    num_prompts: int = Field(256, ge=1)
    """Most held-out prompts that an evaluation uses."""
    num_samples: int = Field(0, ge=0)
    """Responses sampled for each held-out prompt to estimate pass@k. With 0, only greedy pass@1 is measured."""
    success_reward: float = 0.5
    """A response counts as correct if its reward is above this."""
    prompts_per_batch: int = Field(64, ge=1)
    """Held-out prompts that responses are generated for at the same time."""
    gold_model: str | None = None
    """Task `tldr`: the reward model that judges responses against reference summaries. It should not be one that the
    policy was trained with."""
    gold_device: Device = "auto"
    """Device of `evaluation.gold_model`. `auto` is that of the engine."""
    reference_model: str | None = None
    """Task `tldr`, in `tba eval`: the model that KL is measured to. If empty, it is the model that the run of a
    checkpoint started from, and for other models no KL is reported. In training it is always the starting model."""
    num_attacks: int = Field(1024, ge=2)
    """Task `redteam`: attacks that are sampled for an evaluation, over all attacker prompts together."""
    embedding_model: str = ""
    """Task `redteam`: the sentence-embedding model, a directory or id, that the diversity of attacks is measured with.
    The paper's, `all-MiniLM-L6-v2`, also comes with the `embeddings` extra. If empty, diversity is not measured."""
    embedding_device: Device = "auto"
    """Device of `evaluation.embedding_model`. `auto` is that of the engine."""

    @model_validator(mode="after")
    def _check(self) -> EvaluationConfig:
        if self.patience and not self.period:
            raise ValueError("evaluation.patience needs evaluations: set evaluation.period to the steps between them")
        return self
