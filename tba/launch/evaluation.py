"""`tba eval`: one model on one task's held-out problems, in this process, with all cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tba.config.settings import Config
from tba.evaluations.base import Evaluation, OnDone, follow_passes
from tba.launch.evaluation_tables import breakdown_table, is_part, values_table
from tba.launch.preflight import check
from tba.launch.processes import use_threads
from tba.launch.shown import IMPORTING
from tba.runs.bars import Work
from tba.runs.model_of import with_models_of_runs
from tba.runs.run_config import answers_file
from tba.runs.terminal import terminal
from tba.runs.wording import counted
from tba.types import TbaError


def evaluate_model(config: Config, output: Path | None = None) -> dict[str, Any]:
    """Evaluate, print what came out, and write every answer to `output`, or to a file that is announced."""
    console = terminal()
    config, chosen = with_models_of_runs(config, to_train=False)
    with Work(console) as work:
        for note in chosen:
            work.say(note)
        result, name, output = _evaluate(config, output, work)
    console.print(values_table(f"{config.model.path} on {name}", result.values))
    if any(map(is_part, result.values)):
        console.print(breakdown_table(result.values))
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
        result = evaluator(follow_passes(evaluator.passes, partial(_begin, work, task.name)))
    _write(output, result.answers)
    return result, task.name, output


def _begin(work: Work, task: str, what: str, num_prompts: int) -> OnDone:
    work.begin(f"evaluating on {task}: {what}", num_prompts, "prompts")
    return work.advance


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
