"""`tba.train` from Python: as often as one likes, whatever else was imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import importlib, pkgutil
import tba
import tba.api

for module in pkgutil.walk_packages(tba.__path__, "tba."):
    if module.name != "tba.cli":  # nothing of it is for import
        importlib.import_module(module.name)

settings = dict(
    engine={"max_new_tokens": 12},
    searcher={"num_responses": 4, "prompts_per_batch": 2},
    trainer={"num_steps": 2, "num_groups": 2, "group_size": 4},
    evaluation={"period": 0},
    metrics={"tensorboard": False},
)
if __name__ == "__main__":
    for name in ("first", "second"):
        run = {"name": name, "launcher": LAUNCHER, "display": "none"}
        result = tba.train(run=run, **settings)
        assert result.finished and result.summary["steps"] == 2, result.summary
        print(result.run.name, result.model.name)
"""


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_train_survives_the_import_of_everything_and_can_be_called_twice(tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("LAUNCHER", repr(launcher)))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["first", "model", "second", "model"]
