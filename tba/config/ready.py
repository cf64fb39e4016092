"""Ready configurations: files of settings that the package carries, known by their names from any folder."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tba.config.text import read_toml
from tba.types import TbaError

FOLDER = Path(str(resources.files("tba").joinpath("configs")))
_SMOLLM2 = "models/SmolLM2-135M-Instruct"
_TLDR = "--task tldr --task.max-prompt-tokens 192"
_PAIRS = f"tba reward-model all-MiniLM-L6-v2 {_TLDR} --data tldr_pairs.jsonl --learning-rate 1e-4"
MADE_BY = {
    _SMOLLM2: "tba fetch smollm2",
    "models/gsm8k-sft": f"tba sft {_SMOLLM2} --task gsm8k --data gsm8k/train.jsonl --output models/gsm8k-sft",
    "models/tldr-sft": f"tba sft {_SMOLLM2} {_TLDR} --data data/tldr-reddit/train.jsonl --output models/tldr-sft",
    "models/tldr-rm": f"{_PAIRS} --fold 0/2 --output models/tldr-rm",
    "models/tldr-gold": f"{_PAIRS} --fold 1/2 --output models/tldr-gold",
    "models/toxicity-classifier": "tba classifier all-MiniLM-L6-v2 --data toxicity/train.jsonl --learning-rate 1e-4 "
    "--output models/toxicity-classifier",
}
"""Models that ready configurations start from: the command that makes each."""
YOUR_DATA = {
    "gsm8k/train.jsonl": "rows of GSM8K with `question` and `answer`",
    "data/tldr-reddit/train.jsonl": "rows with `post` and `summary`",
    "data/tldr-reddit/valid.jsonl": "rows with `post` and `summary`, to evaluate on",
}
"""Files that ready configurations read and no command makes: what each holds."""


def ready_names() -> list[str]:
    """`smollm2-addition`, `paper/gsm8k-rho1b`: those that run on a small machine first."""
    files = (path.relative_to(FOLDER) for path in FOLDER.rglob("*.toml"))
    return [file.with_suffix("").as_posix() for file in sorted(files, key=lambda file: (len(file.parts), file))]


def about(name: str) -> str:
    """The first sentence of a ready configuration's opening comment."""
    opening = re.match(r"(?:#.*\n)*", (FOLDER / f"{name}.toml").read_text("utf-8"))
    assert opening is not None
    words = " ".join(line.lstrip("# ") for line in opening.group().splitlines())
    return words.split(". ")[0].rstrip(".") + "."


def ready_lines() -> list[str]:
    """What `tba configs` prints."""
    width = max(map(len, ready_names()))
    return [f"{name:<{width}}  {about(name)}" for name in ready_names()]


def read_settings(name: str | Path) -> dict[str, Any]:
    """The settings in a file, or in the ready configuration of this name. A file comes first."""
    path = Path(name)
    if path.exists() or str(name) not in ready_names():
        try:
            return read_toml(path)
        except TbaError as error:
            if path.exists():
                raise
            near = difflib.get_close_matches(path.stem, ready_names(), n=1, cutoff=0.6)
            hint = f"did you mean the ready configuration {near[0]}?" if near else "`tba configs` lists the ready ones"
            raise TbaError(f"{error}, or {hint}") from None
    return read_toml(FOLDER / f"{name}.toml")


def check_earlier_steps(settings: Mapping[str, Any]) -> None:
    """Raise TbaError if the settings of a run name something that an earlier step makes and that is not here."""
    for setting, value in _paths(settings):
        if (value in MADE_BY or value in YOUR_DATA) and not Path(value).exists():
            made = f"make it first with: {MADE_BY[value]}" if value in MADE_BY else f"put {YOUR_DATA[value]} there"
            raise TbaError(f"{setting} = {value!r} is not here yet: {made} (or name another with --{_flag(setting)})")


def _paths(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{before}{key}.")
        elif isinstance(value, str):
            yield f"{before}{key}", value


def _flag(setting: str) -> str:
    return setting.removesuffix(".path").replace("_", "-")
