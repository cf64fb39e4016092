"""`tba eval`: one model on one task's held-out problems, in this process, with all cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tba.config.settings import Config
from tba.evaluations.base import follow_passes
from tba.launch.evaluation_tables import breakdown_table, is_part, values_table
from tba.launch.preflight import check
from tba.launch.processes import use_threads
from tba.runs.bars import follow, progress_bar
from tba.runs.model_of import with_models_of_runs
from tba.runs.run_config import answers_file
from tba.runs.terminal import terminal
from tba.types import TbaError


def evaluate_model(config: Config, output: Path | None = None) -> dict[str, Any]:
    """Evaluate, print what came out, and write every answer to `output`, or to a file that is announced."""
    config, chosen = with_models_of_runs(config, to_train=False)
    for note in (*chosen, *check(config, to_train=False)):
        print(note)
    output = output or answers_file(config.model.path, config.task.kind)
    _check_writable(output)
    use_threads(config.run.num_threads)
    from tba.build.models import build_engine, compared_with
    from tba.build.tasks import build_evaluator, build_scorer, build_task

    engine, tokenizer, model = build_engine(config)
    task = build_task(config, tokenizer, model)
    if not task.held_out:
        raise TbaError("the task has no held-out prompts: give task.eval_data or a task.num_eval above 0")
    for why, count in task.skipped.items():
        print(f"{count} rows skipped: {why}")
    with build_scorer(config, task, str(model.device)) as scorer, progress_bar() as bar:
        evaluator = build_evaluator(
            *(config, engine, scorer, task),
            tokenizer=tokenizer,
            reference=compared_with(config, model.device),
            device=str(model.device),
        )
        result = evaluator(follow_passes(evaluator.passes, lambda what, n: follow(bar, f"{task.name}: {what}", n)))
    _write(output, result.answers)
    console = terminal()
    console.print(values_table(f"{config.model.path} on {task.name}", result.values))
    if any(map(is_part, result.values)):
        console.print(breakdown_table(result.values))
    console.print(f"every answer is in {output}", soft_wrap=True)
    return result.values


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
