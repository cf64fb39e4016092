"""Settings of the model that is trained, of generation with it, and of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from tba.config.section import Device, DeviceList, Section, StringList, Table, TextList


class ModelConfig(Section):
    """The model that is trained. `model = "path"` is short for `model.path = "path"`."""

    path: str
    """A causal language model: a Hugging Face directory or id. `arithmetic` is the small model that comes with tba."""
    device: Device = "auto"
    """Device that the model is trained on: `cpu`, `cuda` or `cuda:1`. `auto` is the first GPU, or the CPU where torch
    finds none."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the matrix products in training and in the reference model. Weights, optimizer, norms, attention,
    softmax and log-probabilities are float32 in any case. `auto` measures products of the model's own shapes when a run
    starts, takes `bfloat16` if it is at least 1.15 times as fast as `float32` on this processor, and writes its choice
    into the run's settings. Models with fewer than 10 million weights, and `run.launcher = "inline"`, get `float32`."""
    attention: Literal["auto", "shared", "padded"] = "auto"
    """`shared` computes each prompt once per group; `padded` is the plain forward, for models with unusual
    attention; `auto` takes `shared` where the architecture allows it."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer and recompute all else in the backward pass: a tenth of the memory of
    activations, about a third more time. Without it a pass keeps the outputs of matrix products and attention too."""
    logit_chunk_tokens: int = Field(256, ge=1)
    """Tokens whose vocabulary logits are held at once when log-probabilities are computed."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the LoRA adapters that are trained in place of the weights, which needs the `lora` extra (peft). With 0,
    the weights themselves are trained."""
    lora_alpha: float = Field(16.0, gt=0)
    """Adapters are scaled by `model.lora_alpha` divided by `model.lora_rank`."""
    lora_targets: StringList = ("all-linear",)
    """Layers that get adapters, by the end of their names, such as `q_proj,v_proj`. `all-linear` means every linear
    layer but the output head."""
    chat_template: str | None = None
    """A file with a chat template (Jinja) to use in place of the model's own, or for a model that has none. It is saved
    with every checkpoint. If empty, the model's own is used."""
    chat_template_kwargs: Table = Field({})
    """What the chat template is told besides the messages, as a TOML table or as
    `--model.chat-template-kwargs.enable-thinking false`, which switches the thinking of Qwen3 off. A text that is valid
    JSON is read as JSON."""
    trust_remote_code: bool = False
    """Whether to run Python code that comes with the model. If false, a model that needs its own code is refused."""

    @property
    def in_bfloat16(self) -> bool:
        """Whether products are in bfloat16. Where no launcher has settled `auto`, they are not."""
        return self.precision == "bfloat16"


class EngineConfig(Section):
    """How responses are generated."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature. Log-probabilities of the policy and of the reference are computed at this temperature
    too."""
    max_new_tokens: int = Field(256, ge=1)
    """Length limit of a response, its end-of-sequence token included."""
    device: DeviceList = ("auto",)
    """Device that responses are generated on: one for all Searchers, or a list with one for each (`cuda:1,cuda:2`).
    `auto` deals Searchers out over the GPUs other than that of `model.device`, shares it where there is no other, and
    is the CPU where torch finds none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the engine keeps its weights. `bfloat16` takes half the memory, computes in bfloat16, and is a
    little off-policy, which the objective accepts; evaluation then uses these weights too. What is trained and
    published stays float32."""
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """Precision of the matrix products that Searchers generate with. `bfloat16` and `int8` multiply by a rounded copy
    of the weights, which is made at each publication; responses are then a little off-policy, which the objective
    accepts, and the metric `engine_gap/mean` says how much. `auto` measures products of the model's own shapes when a
    run starts, takes what is clearly fastest on this processor, and writes its choice into the run's settings. Models
    with fewer than 10 million weights, and `run.launcher = "inline"`, get `float32`. Evaluation uses the weights as
    published. A CPU has kernels for it; a Searcher on a GPU uses the weights as `engine.dtype` keeps them."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Searchers sample from the likeliest tokens that together have this probability (nucleus sampling). With 1, from
    all tokens. This is for exploration only: training uses the log-probabilities of the whole vocabulary, and
    evaluations sample from all tokens."""
    top_k: int = Field(0, ge=0)
    """Searchers sample from this many of the likeliest tokens. With 0, from all tokens. This is for exploration only,
    as `engine.top_p` is."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Searchers sample from tokens that are at least this share as likely as the likeliest token. With 0, from all
    tokens. This is for exploration only, as `engine.top_p` is."""
    stop: TextList = ()
    """Texts, such as a line break or `</answer>`, that end a response as the end-of-sequence token does. The response
    ends with the token that completes one of them, also where several tokens spell it, and keeps it: the reward
    function sees it, and it is trained. Several are given as a list, on the command line as `'["</answer>", "###"]'`.
    If empty, only the end-of-sequence token and the length limit end a response."""
    in_flight_updates: bool = False
    """Whether Searchers load newer weights in the middle of responses. Responses that are being generated then go on
    with the newer weights, and the cached keys and values of the older weights are kept. If false, Searchers begin no
    new response until those that are being generated are finished, so that each response is of one version."""

    @model_validator(mode="before")
    @classmethod
    def _from_before(cls, given: Any) -> Any:
        """`engine.stop_text` was one text: runs and commands of before have it."""
        if not isinstance(given, Mapping) or "stop_text" not in given:
            return given
        rest = {key: value for key, value in given.items() if key != "stop_text"}
        if given["stop_text"] and rest.get("stop"):
            raise ValueError("engine.stop_text is the former name of engine.stop: give engine.stop alone")
        return {**rest, "stop": [given["stop_text"]]} if given["stop_text"] else rest

    @model_validator(mode="after")
    def _check(self) -> EngineConfig:
        if not all(self.stop):
            raise ValueError("engine.stop has an empty text in it, which would end every response: leave it out")
        return self

    @property
    def leaves_tokens_out(self) -> bool:
        """Whether Searchers sample from a part of the vocabulary only."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def settled_precision(self) -> Literal["float32", "bfloat16", "int8"]:
        """The precision of products. Where no launcher has settled `auto`, it is float32."""
        return "float32" if self.precision == "auto" else self.precision


class ReferenceConfig(Section):
    """The model that the policy is held to: the one that training starts from, frozen unless it is told to follow the
    policy. With adapters (`model.lora_rank`) it is the policy's own model with adapters switched off, and takes no
    memory."""

    where: Literal["searcher", "learner"] = "searcher"
    """Which process has the reference model. With `searcher`, every Searcher has a copy and computes the reference's
    log-probabilities of its own responses while these are scored. With `learner`, the Trainer's process has the only
    copy, and computes them once for each trajectory when it is merged (put into the buffer). Searchers then take less
    memory, and the Trainer spends time on it."""
    device: Device = "auto"
    """Device of the reference model. `auto` is that of the Searcher's engine, or that of the Learner if
    `reference.where = "learner"`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the reference keeps its weights. `bfloat16` takes half the memory, and its log-probabilities are
    that much coarser."""
    reset_period: int = Field(0, ge=0)
    """Steps after which the reference becomes a copy of the policy as it is then, again and again; with 0 it never
    does. It changes what is learned: the policy is held to its own recent past. Log-probabilities of the reference are
    then computed at each training step, which takes a forward pass more, and `reference.where` must be `learner`."""
    reset_optimizer: bool = False
    """Whether AdamW forgets its moments of the policy's weights whenever the reference is reset
    (`reference.reset_period`)."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Share of its own weights that the reference keeps after each step, such as 0.9; the rest is taken from the
    policy. The reference is then the exponential mean of the policy's weights, or of its adapters. It changes what is
    learned, and it costs as much as `reference.reset_period`. If empty, there is no such mean."""

    @property
    def moves(self) -> bool:
        """Whether the reference follows the policy."""
        return self.reset_period > 0 or self.ema is not None

    @model_validator(mode="after")
    def _check(self) -> ReferenceConfig:
        setting = "reference.reset_period" if self.reset_period else "reference.ema"
        if self.reset_period and self.ema is not None:
            raise ValueError("reference.reset_period and reference.ema both move the reference: choose one of them")
        if self.reset_optimizer and not self.reset_period:
            raise ValueError(
                "reference.reset_optimizer needs reference.reset_period: say how often the reference is reset"
            )
        if self.moves and self.where != "learner":
            raise ValueError(
                f"{setting} needs reference.where = 'learner': the reference changes with the policy there"
            )
        if self.moves and (self.device != "auto" or self.dtype != "float32"):
            raise ValueError(
                f"{setting} keeps the reference beside the policy, in float32: leave reference.device and "
                "reference.dtype out"
            )
        return self
