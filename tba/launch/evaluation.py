"""`tba eval`: one model on one task's held-out problems, in this process, with all cores."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tba.config import Config
from tba.launch.preflight import check
from tba.launch.processes import num_cores, thread_environment
from tba.types import TbaError


def evaluate_model(config: Config, output: Path | None) -> dict[str, Any]:
    """Evaluate, print a table, and write every answer to `output` if asked."""
    check(config, training=False)
    num_threads = config.run.num_threads or num_cores()
    os.environ.update(thread_environment(num_threads))
    import torch

    from tba.build import build_engine, build_evaluator, build_scorer, build_task, load_reference

    torch.set_num_threads(num_threads)
    engine, tokenizer, model = build_engine(config)
    task = build_task(config, tokenizer, model)
    if not task.held_out:
        raise TbaError("the task has no held-out prompts: give task.eval_data or a task.num_eval above 0")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with build_scorer(config, task) as scorer, Progress(*columns, transient=True) as bar:
        evaluator = build_evaluator(config, engine, scorer, task, tokenizer=tokenizer, reference=load_reference(config))
        shown = bar.add_task(f"{task.name}: prompts", total=evaluator.num_prompts)
        result = evaluator(lambda done: bar.advance(shown, done))
    _print(config, task.name, result.values)
    if output is not None:
        _write(output, result.answers)
    return result.values


def _print(config: Config, task: str, values: dict[str, Any]) -> None:
    table = Table(title=f"{config.model.path} on {task}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in values.items():
        if name.endswith("_se"):
            continue
        error = values.get(f"{name}_se")
        shown = f"{value:.4f}" if isinstance(value, float) else str(value)
        table.add_row(name, shown + (f" ± {error:.4f}" if error is not None else ""))
    Console(highlight=False).print(table)


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
