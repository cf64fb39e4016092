"""The commands: what each is called with, what it does, its options and an example. `tba --help` is made of this."""

from __future__ import annotations

from dataclasses import dataclass

SETTINGS = "[--section.key value …]"


@dataclass(frozen=True)
class Command:
    """One command, as its help has it."""

    uses: tuple[tuple[str, str], ...]
    """What it is called with, after `tba`, and what that does; the first is the command as such."""
    details: str = ""
    """Sentences that stand in its own help only."""
    options: tuple[tuple[str, str], ...] = ()
    """Its options that are no settings, and what each does."""
    sections: tuple[str, ...] | None = ()
    """The sections of settings that it takes; None: all."""
    used_most: tuple[str, ...] = ()
    """The settings that its help begins with."""
    examples: tuple[str, ...] = ()

    @property
    def takes_settings(self) -> bool:
        return self.sections is None or bool(self.sections)


_TRAINING = (
    *("model.path", "task.data", "reward.functions", "engine.max_new_tokens", "searcher.num_responses"),
    *("searcher.num_searchers", "trainer.num_steps", "trainer.learning_rate", "trainer.micro_batch_tokens"),
    *("objective.beta", "model.lora_rank", "run.name"),
)
_SUPERVISED = "The options of a task, as `--task.num-eval`, are listed by `tba train --help task`."
COMMANDS = {
    "train": Command(
        uses=(
            (f"train [CONFIG] {SETTINGS}", "train a model; with no arguments, run the demo"),
            ("train --resume RUN", "continue a run from its newest checkpoint"),
        ),
        details="CONFIG is a TOML file of yours, or the name of a ready configuration (`tba configs` lists them).",
        options=(
            ("--resume RUN", "continue a run from its newest checkpoint, or from the checkpoint that is named"),
            ("--overwrite", "replace a run of the same name"),
        ),
        sections=None,
        used_most=_TRAINING,
        examples=("tba train --model PATH_OR_ID --task.data my.jsonl --reward my_module:my_reward",),
    ),
    "replay": Command(
        uses=(("replay RUN [--objective.key value …]", "repeat the training of a run on its recorded data"),),
        details="Nothing is generated: the Trainer alone makes the same steps, with the settings that are changed.",
        options=(("--steps N", "replay the first N steps only; schedules do not change"),),
        sections=None,
        used_most=("objective.kind", "objective.beta", "trainer.learning_rate", "trainer.num_steps", "run.name"),
        examples=("tba replay runs/A --objective.kind rloo --steps 50",),
    ),
    "sweep": Command(
        uses=(("sweep SPACE.toml [--dry-run]", "tune settings: every combination, several seeds"),),
        options=(("--dry-run", "print the combinations and start nothing"),),
        examples=("tba sweep space.toml --dry-run",),
    ),
    "eval": Command(
        uses=(("eval MODEL [--task NAME] [--section.key …]", "evaluate a model: greedy pass@1, sampled pass@k"),),
        details="A run or a checkpoint brings the settings of its run. Without a MODEL it is the newest run.",
        options=(
            (
                "--output FILE",
                "write every answer to this file, one JSON record a line (without it, to a file that is named at the "
                "end)",
            ),
        ),
        sections=("run", "model", "task", "reward", "engine", "reference", "searcher", "evaluation"),
        used_most=(
            *("task.kind", "task.data", "reward.functions", "engine.max_new_tokens"),
            *("evaluation.num_prompts", "evaluation.num_samples", "evaluation.prompts_per_batch"),
        ),
        examples=("tba eval runs/A --evaluation.num-samples 16",),
    ),
    "export": Command(
        uses=(
            (
                "export RUN_OR_MODEL FOLDER [--dtype bfloat16]",
                "write a model, or its adapter, for transformers and vLLM",
            ),
        ),
        options=(
            ("--merged", "the whole model, with adapters merged into it (the default)"),
            ("--adapter", "the adapter alone, as a PEFT folder: of a run with model.lora_rank"),
            ("--best", "of a run: its best model, in place of its newest checkpoint"),
            ("--dtype TYPE", "type of the weights: float32, bfloat16 or float16; if left out, the source's"),
            ("--trust-remote-code", "run Python code that comes with the model"),
        ),
        examples=("tba export runs/A models/A --best --dtype bfloat16",),
    ),
    "runs": Command(
        uses=(("runs [FOLDER] [--json]", "list runs, the newest first: what they are, how far they came"),),
        details="Without a FOLDER it is the folder runs.",
        options=(("--json", "print the rows as JSON, with the same numbers"),),
        examples=("tba runs runs/tune",),
    ),
    "status": Command(
        uses=(("status [RUN]", "show what each process of a run is doing now"),),
        details="Without a RUN it is the newest one. The exit code is 0 if the run is going on or has finished, and 1 "
        "if it could be resumed.",
        examples=("tba status runs/A",),
    ),
    "samples": Command(
        uses=(("samples [RUN] [--best | --worst]", "show responses of a run, with rewards and where they came from"),),
        details="RUN may be going on, finished or stopped. Without one it is the newest run.",
        options=(
            ("--best", "the responses of highest reward, each to another prompt"),
            ("--worst", "the responses of lowest reward"),
            ("--prompt TEXT", "responses to one prompt over time: its id, or a text that is in it"),
            ("--step A", "responses that the weights of step A made; A-B for a range of steps"),
            ("--num N", "how many responses to show (default 4)"),
            ("--full", "do not cut long texts"),
            ("--json", "one JSON record a line, with all fields and nothing cut"),
        ),
        examples=("tba samples runs/A --worst --num 8",),
    ),
    "compare": Command(
        uses=(
            (
                "compare RUN RUN … [--plot FILE.png]",
                "show settings and results of runs side by side, draw a plot",
            ),
        ),
        options=(
            ("--plot FILE.png", "draw the headline number and the reward of new responses into this file"),
            ("--x AXIS", "what the plot is drawn over: minutes, steps or tokens (minutes if left out)"),
            ("--json", "print settings that differ and results as JSON"),
        ),
        examples=("tba compare runs/A runs/B --plot both.png",),
    ),
    "sft": Command(
        uses=(("sft MODEL --data FILE --output DIR", "fine-tune on demonstrations (SFT)"),),
        details=_SUPERVISED,
        examples=("tba sft models/base --data demonstrations.jsonl --output models/sft --epochs 2",),
    ),
    "reward-model": Command(
        uses=(("reward-model MODEL --data FILE --output DIR", "train a reward model on pairs of responses"),),
        details=_SUPERVISED,
        examples=("tba reward-model models/sft --data pairs.jsonl --output models/reward",),
    ),
    "classifier": Command(
        uses=(("classifier MODEL --data FILE --output DIR", "train a classifier of texts with one logit"),),
        examples=("tba classifier all-MiniLM-L6-v2 --data labelled.jsonl --output models/classifier",),
    ),
    "config": Command(
        uses=((f"config [CONFIG] {SETTINGS}", "print the settings as TOML, a file to edit"),),
        details="What is not set is printed as a comment with its meaning. `tba train` takes the file as its CONFIG.",
        sections=None,
        used_most=_TRAINING,
        examples=("tba config --model PATH_OR_ID --task.data my.jsonl --reward my_module:my_reward > my.toml",),
    ),
    "tasks": Command(uses=(("tasks", "list the kinds of task"),)),
    "configs": Command(uses=(("configs", "list the ready configurations, which tba train NAME takes"),)),
    "fetch": Command(
        uses=(("fetch smollm2 [FOLDER]", "write a small real model into a folder"),),
        details="Without a FOLDER it is written into the folder models.",
        examples=("tba fetch smollm2",),
    ),
}
"""In the order in which they are listed."""

_HEAD = "tba: asynchronous, off-policy post-training of language models with trajectory balance"
_FOOT = """\
  CONFIG is a TOML file of yours, or the name of a ready configuration.
  MODEL is a folder or an id of the hub. A run stands for its newest checkpoint: tba eval runs/NAME.
  tba COMMAND --help                                show what a command does and takes
  tba train --help all                              list every setting, its meaning and its default

train your own model with your own data and reward:
  tba train --model PATH_OR_ID --task.data my.jsonl --reward my_module:my_reward
"""


def usage() -> str:
    """What `tba --help` prints."""
    uses = [use for command in COMMANDS.values() for use in command.uses]
    column = max(len(words) for words, _ in uses)
    lines = [f"  tba {words:<{column}}  {about}" for words, about in uses]
    return "\n".join([_HEAD, "", *lines, "", _FOOT])
