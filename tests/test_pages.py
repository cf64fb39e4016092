"""What pages tell the reader to type exists, and what they name is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from documented_commands import COMMAND, Command, commands_in, fault, split, unknown_options, unknown_settings
from shown_blocks import blocks_of
from site_hooks import opening

from tba.config.help import setting_names
from tba.config.other_names import OTHER_NAMES
from tba.config.ready import ready_names
from tba.extras import EXTRAS, install_hint

ROOT = Path(__file__).parent.parent
ROOT_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md"]
PAGES = [*ROOT_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]
SITE = sorted((ROOT / "docs").glob("*.md"))
"""Pages of the documentation, without the notes that some of them are made from."""
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
CONFIGURATIONS = sorted((ROOT / "tba/configs").rglob("*.toml"))
WRITTEN = [path for path in (*PAGES, *PROGRAMS, *CONFIGURATIONS) if path.name != "command-line.md"]
"""By people: the page of the commands is what the commands print."""
COMMANDS = [found for path in WRITTEN for found in commands_in(path, ROOT)]


def faults_of(text: str) -> list[str | None]:
    return [fault(Command("here", words)) for words in split(text)]


def test_commands_are_found() -> None:
    """The guard of the guards."""
    places = {command.place for command in COMMANDS}
    assert {"README.md", "docs/tasks-tldr.md", "examples/own_reward/train.py"} <= places
    assert "tba/configs/smollm2-gsm8k.toml" in places
    assert {command.name for command in COMMANDS} >= {"train", "eval", "sft", "fetch", "status", "compare"}
    assert COMMAND in {command.words[0] for command in COMMANDS}
    assert len(COMMANDS) > 60


def test_variables_loops_and_continued_lines_are_understood() -> None:
    text = (
        'ROWS="--task tldr --task.data d"\nA=1 tba sft m $ROWS \\\n  --output o  # a remark\nls; do tba tasks; done\n'
    )
    assert split(text) == [
        ("tba", "sft", "m", "--task", "tldr", "--task.data", "d", "--output", "o"),
        ("tba", "tasks"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "tba trian smollm2-addition",
        "tba train no-such",
        "tba train --task.prompt-format chat",
        "tba train --model m --task tldr --task.data d --reward.model r --task.num-shots 2",
        "tba eval m --trainer.lr 1e-6",
        "tba sft m --data d --output o --learning-rates 1",
        "tba sft m --output o",
        "tba classifier m --task tldr --data d --output o",
        "tba compare runs/A --picture f.png",
        "tba fetch smollm3",
        "tba bench generation",
        "python -m benchmarks speed",
        "python -m benchmarks page --results r --fast",
    ],
)
def test_a_wrong_command_is_found(wrong: str) -> None:
    assert faults_of(wrong) != [None]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_documented_commands_exist(command: Command) -> None:
    assert fault(command) is None


@pytest.mark.parametrize("path", [*PAGES, *CONFIGURATIONS], ids=lambda path: path.stem)
def test_settings_that_pages_name_exist(path: Path) -> None:
    assert unknown_options(path) == []
    assert unknown_settings(path) == []


def test_a_wrong_setting_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`--task.prompt-format chat` is `task.prompt_format`; `--task.num-eval 8`, `metrics.jsonl` are there.\n"
    )
    assert unknown_options(page) == ["--task.prompt-format"]
    assert unknown_settings(page) == ["task.prompt_format"]


def test_configurations_that_pages_name_are_there() -> None:
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in (*PAGES, *PROGRAMS, *CONFIGURATIONS)
        for name in re.findall(r"(?:`|train )((?:smollm2-|paper/)[\w.-]*\w)", path.read_text("utf-8"))
    }
    assert len(named) > 10
    assert [(page, name) for page, name in sorted(named) if name not in ready_names()] == []


def test_links_of_pages_lead_somewhere() -> None:
    links = [
        (path, target.partition("#")[0])
        for path in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8"))
        if "://" not in target and not target.startswith("#")
    ]
    assert len(links) > 20
    assert [(path.name, target) for path, target in links if not (path.parent / target).exists()] == []


def test_targets_of_make_that_pages_name_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    named = {
        name for path in PAGES for name in re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert {"demo", "test", "bench"} <= named
    assert named <= targets


def test_the_demo_takes_as_long_everywhere() -> None:
    told = [
        re.findall(r"make demo .*\bin (.+ on two cores)", (ROOT / name).read_text("utf-8"))
        for name in ("README.md", "Makefile")
    ]
    assert len(told[0]) == 1
    assert told[0] == told[1]


# ---------------------------------------------------------------------------------------------------------------------
# How pages read
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SITE, ids=lambda path: path.stem)
def test_a_page_begins_with_what_one_can_do_after_it(path: Path) -> None:
    heading, purpose = opening(path.read_text("utf-8"))
    assert heading
    assert re.match(r"(After (reading )?this page|On this page) ", purpose), purpose


@pytest.mark.parametrize("path", [ROOT / "README.md", *SITE], ids=lambda path: path.stem)
def test_mop_is_expanded_where_it_is_first_used(path: Path) -> None:
    text = path.read_text("utf-8")
    first = re.search(r"\bMOP\b", text)
    assert first is None or "most-on-policy" in text[max(0, first.start() - 80) : first.end() + 80].replace("\n", " ")


@pytest.mark.parametrize("path", [ROOT / "README.md", *SITE], ids=lambda path: path.stem)
def test_a_page_that_speaks_of_searchers_says_what_they_are(path: Path) -> None:
    text = " ".join(path.read_text("utf-8").split())
    assert "Searcher" not in text or "rollout worker" in text or path.name == "command-line.md"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_python_are_python(path: Path) -> None:
    for block in blocks_of(path, "python"):
        compile(block.text, path.name, "exec")


def test_names_of_other_tools_mean_what_the_page_says() -> None:
    text = (ROOT / "docs/coming-from.md").read_text("utf-8")
    table = text.partition("## Settings side by side")[2].partition("## What to bring")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 15
    for [ours], *others in ([re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows):
        assert ours in setting_names()
        answered = {ours, ours.partition(".")[2], *OTHER_NAMES.get(ours, ())}
        for name in (name for cell in others for name in cell):
            assert answered & {name.split(".", n)[-1] for n in range(name.count(".") + 1)}, name


# ---------------------------------------------------------------------------------------------------------------------
# Installation
# ---------------------------------------------------------------------------------------------------------------------

ANOTHER_PROJECT = re.compile(r"""pip install (?:-\S+ )*["']?tba\b|["']tba\[""")
"""`tba` on the package index is not this project."""


def test_nothing_tells_the_reader_to_install_another_project() -> None:
    assert ANOTHER_PROJECT.search("pip install tba")
    assert ANOTHER_PROJECT.search("pip install --upgrade 'tba[trl]'")
    assert not ANOTHER_PROJECT.search("pip install 'trajectory-balance[trl]'")
    sources = [path for folder in ("tba", "scripts", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = [*PAGES, *sources, *CONFIGURATIONS, ROOT / "Makefile"]
    assert [str(path.relative_to(ROOT)) for path in texts if ANOTHER_PROJECT.search(path.read_text("utf-8"))] == []


def test_messages_ask_for_extras_in_one_way() -> None:
    """So that a change of the name is one change."""
    by_hand = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tba").rglob("*.py"))
        if "pip install '" in path.read_text("utf-8") and path.name != "extras.py"
    ]
    assert by_hand == []


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"dev", "docs"} == EXTRAS
    assert install_hint("trl") == f"pip install '{project['name']}[trl]'"


def test_extras_that_pages_name_are_there() -> None:
    named = {
        extra
        for path in PAGES
        for names in re.findall(r"pip install -e '\.\[([\w,-]+)\]'", path.read_text("utf-8"))
        for extra in names.split(",")
    }
    assert named
    assert named <= EXTRAS | {"dev", "docs"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_files_of_the_package_that_pages_name_exist(path: Path) -> None:
    """As `tba/learn/trainer.py`, or with the room alone, as `learn/trainer.py`."""
    text = path.read_text("utf-8")
    named = {name.removeprefix("tba/") for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", text)}
    roots = (ROOT / "tba", ROOT)
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()
