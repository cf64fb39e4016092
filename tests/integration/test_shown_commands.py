"""Commands that pages show, run as they stand in a folder that has what they name; trainings are made short.

Blocks that need more than a test has are marked with what they need (`shown_blocks`). A block that is not marked and
cannot be run fails here.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import string
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from shown_blocks import NEEDS, Block, blocks_of, lines_of
from small_runs import INLINE, small_config
from transformers import AutoTokenizer

from tba import train
from tba.cli import main
from tba.testing import save_tiny_model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")] + sorted((ROOT / "docs").glob("*.md"))
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
OWN_MODULES = ("my_module", "mine")
"""The reader's, which commands import here."""
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
MODELS = ("PATH_OR_ID", "MODEL", "models/SmolLM2-135M-Instruct")
"""Where a tiny chat model stands in for the reader's."""
SHORT = {
    "run.launcher": "inline",
    "run.display": "none",
    "run.num-threads": "1",
    "trainer.num-steps": "2",
    "trainer.num-groups": "2",
    "trainer.group-size": "2",
    "searcher.num-responses": "2",
    "searcher.prompts-per-batch": "2",
    "engine.max-new-tokens": "8",
    "evaluation.num-prompts": "2",
    "metrics.tensorboard": "false",
    "trainer.micro-batch-tokens": "2048",
}
"""Added to a training, where the command does not say otherwise."""
SHORT_EVALUATION = {"evaluation.num-prompts": "2", "engine.max-new-tokens": "8", "run.num-threads": "1"}
NUMBERS = itertools.count()


def block_in(page: str, language: str, beginning: str) -> str:
    found = blocks_of(ROOT / page, language)
    return next(block.text for block in found if block.text.startswith(beginning))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What readers have when they come to a page: a model, rows, the page's own files, a run."""
    root = tmp_path_factory.mktemp("reader")
    tiny = save_tiny_model(root / "tiny", alphabet=string.printable)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tiny)
    for name in MODELS:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(tiny)
    rows = ({"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(20))
    (root / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (root / "my_module.py").write_text(block_in("README.md", "python", "def my_reward"), "utf-8")
    (root / "mine.py").write_text(block_in("docs/objective.md", "python", "# mine.py"), "utf-8")
    (root / "tune.toml").write_text(block_in("docs/sweep.md", "toml", "# tune.toml"), "utf-8")
    num_threads = torch.get_num_threads()
    train(small_config(root / "runs", "NAME", run=INLINE, model={"lora_rank": 2}))
    yield root
    torch.set_num_threads(num_threads)
    for name in OWN_MODULES:  # other tests have modules of these names
        sys.modules.pop(name, None)


def words_of(line: str) -> list[str]:
    """A command as it is run: a training is short, and an evaluation."""
    words = shlex.split(line)
    assert words[0] == "tba", f"only `tba …` is run: mark the block with what it needs: {line}"
    name = {"run.name": f"shown-{next(NUMBERS)}"}  # a name made of the time could be there already
    added = {"train": SHORT | name, "replay": name, "eval": SHORT_EVALUATION}.get(words[1], {})
    given = {word.removeprefix("--").partition("=")[0] for word in words}
    return words[1:] + [part for name, value in added.items() if name not in given for part in (f"--{name}", value)]


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.is_run}))
def test_commands_of_a_page_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for block in BLOCKS:
        if block.page == page and block.is_run:
            for line in lines_of(block):
                command, _, target = line.partition(" > ")
                with open(target or os.devnull, "w") as file, redirect_stdout(file):
                    assert main(words_of(command)) == 0, f"{page}: {line}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if not b.is_run], ids=lambda b: f"{b.page}: {b.text[:40]!r}")
def test_what_a_block_needs_is_known_and_its_test_is_there(block: Block) -> None:
    assert set(block.needs) <= set(NEEDS)
    if block.tested:
        assert block.page in (ROOT / block.tested).read_text("utf-8")


def test_blocks_of_both_kinds_are_found() -> None:
    """The guard of the guard."""
    assert sum(block.is_run for block in BLOCKS) > 8
    assert {need for block in BLOCKS for need in block.needs} >= {"SmolLM2", "a clone", "hours"}
    assert any(block.tested for block in BLOCKS)


def test_a_command_that_nobody_can_run_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\nmake dinner  # now\n```\n<!-- needs: a clone, hours -->\n```sh\nmake supper\n```\n```toml\na = 1\n```\n"
    )
    plain, marked = blocks_of(page)
    assert plain.is_run
    assert marked.needs == ("a clone", "hours")
    with pytest.raises(AssertionError, match="mark the block"):
        words_of(lines_of(plain)[0])
