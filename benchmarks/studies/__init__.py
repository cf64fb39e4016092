"""Studies of learning from stale data: sweeps, their records, and the page that is written from them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "asynchrony"
