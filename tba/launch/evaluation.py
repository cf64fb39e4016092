"""`tba eval`: one model on one task's held-out problems, in this process, with all cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tba.config.settings import Config
from tba.evaluations.base import Evaluation
from tba.launch.preflight import check
from tba.launch.processes import use_threads
from tba.launch.shown import IMPORTING
from tba.runs.bars import Work
from tba.runs.run_config import answers_file
from tba.runs.terminal import terminal
from tba.runs.wording import counted
from tba.types import TbaError


def evaluate_model(config: Config, output: Path | None = None) -> dict[str, Any]:
    """Evaluate, print what came out, and write every answer to `output`, or to a file that is announced."""
    console = terminal()
    with Work(console) as work:
        result, name, output = _evaluate(config, output, work)
    console.print(f"{config.model.path} on {name}", style="italic", soft_wrap=True)
    console.print(_table(result.values))
    if any(map(_is_part, result.values)):
        console.print(_breakdown_table(result.values))
    console.print(f"every answer is in {output}", soft_wrap=True)
    return result.values


def _evaluate(config: Config, output: Path | None, work: Work) -> tuple[Evaluation, str, Path]:
    """What was measured, the name of the task, and the file with the answers."""
    work.begin("checking the input", silently=True)
    for note in check(config, to_train=False):
        work.say(note)
    output = output or answers_file(config.model.path, config.task.kind)
    _check_writable(output)
    work.begin(IMPORTING)
    use_threads(config.run.num_threads)
    from tba.build.models import build_engine, compared_with
    from tba.build.tasks import build_evaluator, build_scorer, build_task

    work.begin("loading the model")
    engine, tokenizer, model = build_engine(config)
    work.begin("encoding prompts")
    task = build_task(config, tokenizer, model)
    if not task.held_out:
        raise TbaError("the task has no held-out prompts: give task.eval_data or a task.num_eval above 0")
    for why, count in task.skipped.items():
        work.say(f"{counted(count, 'row')} skipped: {why}")
    work.begin("starting reward processes")
    with build_scorer(config, task, str(model.device)) as scorer:
        evaluator = build_evaluator(
            *(config, engine, scorer, task),
            tokenizer=tokenizer,
            reference=compared_with(config, model.device),
            device=str(model.device),
        )
        num_held_out = min(len(task.held_out), config.evaluation.num_prompts)
        passes = " (each greedily, then sampled)" if evaluator.num_prompts > num_held_out else ""
        work.begin(f"evaluating on {task.name}{passes}", evaluator.num_prompts, "prompts")
        result = evaluator(work.advance)
    _write(output, result.answers)
    return result, task.name, output


def _table(values: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name in values:
        if not name.endswith("_se") and not _is_part(name):
            table.add_row(name, _with_error(values, name))
    return table


def _breakdown_table(values: dict[str, Any]) -> Table:
    table = Table("accuracy by", "prompts", "accuracy", title="broken down", title_justify="left")
    for name in values:
        if _is_part(name) and not name.endswith(("_se", "_n")):
            table.add_row(Text(name.removeprefix("accuracy/")), str(values[f"{name}_n"]), _with_error(values, name))
    return table


def _is_part(name: str) -> bool:
    """Whether a value is of one group of prompts, as in `accuracy/level=3`."""
    return name.startswith("accuracy/") and "=" in name


def _with_error(values: dict[str, Any], name: str) -> str:
    value, error = values[name], values.get(f"{name}_se")
    shown = f"{value:.4f}" if isinstance(value, float) else str(value)
    return shown + (f" ± {error:.4f}" if error is not None else "")


def _check_writable(output: Path) -> None:
    """Found out now, not after an hour of generation."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.open("a").close()
    except OSError as error:
        raise TbaError(f"cannot write {output}: {error.strerror}; name another file with --output") from None


def _write(output: Path, answers: Sequence[Any]) -> None:
    try:
        with open(output, "w", encoding="utf-8") as file:
            for answer in answers:
                record = {
                    "id": answer.problem.prompt.id,
                    "prompt": answer.problem.prompt.text,
                    "response": answer.response.text,
                    "reward": answer.reward,
                    "greedy": answer.greedy,
                    "finished": answer.response.finished,
                    **answer.notes,
                    **{f"column/{k}": v for k, v in answer.problem.columns.items()},
                }
                file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
    except OSError as error:
        raise TbaError(f"cannot write {output}: {error.strerror}") from None
