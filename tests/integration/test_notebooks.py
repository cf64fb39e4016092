"""Runs started where there is no script: from a notebook's cells, and from a script on standard input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = """
small = dict(
    model="arithmetic",
    dataset=[{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 5) for b in range(1, 5)],
    task={"num_eval": 4},
    engine={"max_new_tokens": 8},
    searcher={"num_responses": 4, "prompts_per_batch": 2},
    trainer={"num_steps": 2, "num_groups": 2, "group_size": 4},
    evaluation={"period": 0},
    metrics={"tensorboard": False},
)
"""

STANDARD_INPUT = f"""
import tba
{SETTINGS}
BONUS = 0.5

def helper(text, truth):
    return BONUS + (truth in text)

def right(texts, answer, **columns):
    return [helper(text, truth) for text, truth in zip(texts, answer)]

result = tba.train(reward=[right, lambda texts, **columns: [2.0 for _ in texts]],
                   run={{"name": "typed", "display": "none", "num_threads": 1}}, **small)
print(result)
"""


def test_a_script_on_standard_input_trains_with_functions_of_its_own(tmp_path: Path) -> None:
    """With processes: a function goes to the Searcher and from there to the reward process."""
    done = subprocess.run(
        [sys.executable, "-"], input=STANDARD_INPUT, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Result('runs/typed', finished, ")
    run = tmp_path / "runs/typed"
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    parts = [r["rewards/lambda/mean"] for r in reports if r["kind"] == "search"]
    assert set(parts) == {2.0}
    again = subprocess.run(
        [sys.executable, "-m", "tba.cli", "train", "--resume", str(run), "--trainer.num-steps", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 2
    assert again.stderr.startswith("tba: reward '<given>:right' was a function of the Python session")
    assert again.stderr.count("\n") == 1


CELLS = (
    "import tba" + SETTINGS,
    "WORTH = 1.0",
    "def right(texts, answer, **columns):\n    return [WORTH * (t in x) for x, t in zip(texts, answer)]",
    "result = tba.train(reward=right, run={'name': 'cells', 'launcher': 'inline', 'num_threads': 1}, **small)\nresult",
    "tba.resume('runs/cells', {'trainer': {'num_steps': 3}}, reward=right)",
)


def test_a_function_of_a_cell_works_and_the_notebook_shows_the_run(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = notebook.cells[3].outputs
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    assert any("<tr><th>run</th><td>runs/cells</td></tr>" in page for page in pages), "the result"
    assert any("summary" in page for page in pages), "the table at the end"
    assert outputs[-1]["data"]["text/plain"].startswith("Result('runs/cells', finished")
    assert "finished" in notebook.cells[4].outputs[-1]["data"]["text/plain"]
    source = (tmp_path / "runs/cells/rewards/right.py.txt").read_text("utf-8")
    assert source.strip() == CELLS[2]
