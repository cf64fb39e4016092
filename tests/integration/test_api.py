"""`tba.train` from Python: as often as one likes, with either launcher, whatever else was imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib, pkgutil
import tba
import tba.api

settings = dict(
    engine={"max_new_tokens": 12},
    searcher={"num_responses": 4, "prompts_per_batch": 2},
    trainer={"num_steps": 2, "num_groups": 2, "group_size": 4},
    evaluation={"period": 0},
    metrics={"tensorboard": False},
)
if __name__ == "__main__":  # not in the processes of a run
    for module in pkgutil.walk_packages(tba.__path__, "tba."):
        importlib.import_module(module.name)
    for name, launcher in (("first", "inline"), ("second", "local")):
        run = {"name": name, "launcher": launcher, "display": "none"}
        result = tba.train(run=run, **settings)
        assert result.finished and result.summary["steps"] == 2, result.summary
        print(result.run.name, result.model.name)
"""


def test_train_survives_the_import_of_everything_and_can_be_called_twice(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["first", "model", "second", "model"]
