from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_processes_are_forked_unless_a_gpu_or_another_environment_forbids_it(tmp_path: Path) -> None:
    """`threads` are those that the libraries of the process were told of when they were imported: a server has one,
    so that it has no thread that a fork would lose."""
    script = Path(__file__).with_name("nursery_cases.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=300)
    seen = {path.name: json.loads(path.read_text("utf-8")) for path in tmp_path.iterdir()}
    forked = {"forked": True, "threads": "1", "ignored": True}
    spawned = {"forked": False, "threads": "3", "ignored": True}
    changed = seen.pop("launcher")
    assert seen == {"first": forked, "other environment": spawned, "again": forked, "gpu": spawned}
    assert not changed, "the launcher's own environment and its signals are as they were"
