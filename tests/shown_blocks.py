"""The commands that pages show in blocks, and what is said of each block: that it needs something, or what tests it.

A comment above a block says so, and is not seen on GitHub:

    <!-- needs: SmolLM2, half an hour -->
    <!-- tested: tests/integration/test_quickstart.py -->

Every other block is run by `tests/integration/test_shown_commands.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NEEDS = {
    "a clone": "a clone of the repository, and make",
    "the package index": "pip installs something",
    "SmolLM2": "tba fetch smollm2",
    "the hub": "a model or data of the Hugging Face hub",
    "data": "files that tba does not bring; the page says where they are from",
    "models of the page": "models that other commands of the page have made",
    "runs of the page": "runs that the page is about",
    "TRL": "the extra trl",
    "GPUs": "several of them",
    "minutes": "more time than a test has",
    "half an hour": "the same",
    "hours": "the same",
    "a better model": "a run that got better than the model it started from",
    "vLLM": "its environment",
}
"""What a block may need: what that is."""
SHELL = ("", "sh", "bash", "console", "shell")
_BLOCK = re.compile(r"(?:^<!-- (needs|tested): ([^>]*?) -->\n+)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\w+=\S+ )*(?:tba|python3?|pip|make|vllm|git|\.) ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: str
    text: str
    needs: tuple[str, ...] = ()
    tested: str = ""

    @property
    def is_run(self) -> bool:
        return not self.needs and not self.tested


def blocks_of(path: Path, language: str | None = None) -> list[Block]:
    """Blocks of commands, or those in a language."""
    found = []
    for kind, said, tongue, text in _BLOCK.findall(path.read_text("utf-8")):
        is_wanted = tongue == language if language else tongue in SHELL and _COMMAND.search(text)
        if is_wanted:
            needs = tuple(re.split(r", | and ", said)) if kind == "needs" else ()
            found.append(Block(path.name, text, needs, said if kind == "tested" else ""))
    return found


def lines_of(block: Block) -> list[str]:
    """Commands without the remarks beside them; continued lines as one."""
    text = block.text.replace("\\\n", " ")
    return [line for line in (re.sub(r"(^|\s)# .*", "", line).strip() for line in text.splitlines()) if line]
