"""Runs the notebooks of examples/ from beginning to end, each in a folder of its own; what they show is not kept.

python scripts/run_notebooks.py [examples/stale_data.ipynb …]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def main(notebooks: list[Path]) -> int:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    failed = 0
    for path in notebooks or sorted(EXAMPLES.glob("*.ipynb")):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tba-notebook-") as folder:
            notebook = nbformat.read(path, as_version=4)
            try:
                NotebookClient(notebook, timeout=None, resources={"metadata": {"path": folder}}).execute()
                print(f"{path.name}: done in {time.monotonic() - begun:.0f} s", flush=True)
            except CellExecutionError as error:
                failed += 1
                print(f"{path.name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
