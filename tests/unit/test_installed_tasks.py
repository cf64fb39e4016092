"""A task that an installed package adds, by an entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tba import tasks
from tba.config.help import setting_names, task_lines
from tba.config.settings import Config, load_config, parse_config, to_toml
from tba.config.text import parse_overrides, read_toml
from tba.launch.preflight import check
from tba.runs.summary import headline_of_run
from tba.types import TbaError

CODE = '''
from typing import ClassVar, Literal

from pydantic import Field

from tba.tasks import Headline, Problem, Task, TaskSettings
from tba.types import Prompt


class Settings(TaskSettings):
    """Counts upwards."""

    kind: Literal["counting"] = "counting"
    """The kind of task."""
    length: int = Field(3, ge=1)
    """How far to count."""
    headline: ClassVar[Headline] = Headline("counted")

    def load(self, encode):
        problems = []
        for number in range(self.length):
            text, tokens = encode(str(number))
            problems.append(Problem(Prompt(str(number), text, tokens), str(number), {"answer": str(number + 1)}))
        return Task("counting", problems, problems[:1], "tba.rewards.answer:final_answer")
'''


def install(folder: Path, code: str, target: str = "counting_task:Settings", kind: str = "counting") -> None:
    (folder / "counting_task.py").write_text(code)
    metadata = folder / "counting_task-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-task\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[tba.tasks]\n{kind} = {target}\n")


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder on the path, to install into. What is known of installed tasks is forgotten before and after."""

    def clear() -> None:
        tasks.installed_kinds.cache_clear()
        tasks.settings_of.cache_clear()
        sys.modules.pop("counting_task", None)

    clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path  # type: ignore[misc]
    clear()


@pytest.fixture
def installed(forget: Path) -> Path:
    install(forget, CODE)
    return forget


def test_it_is_a_task_like_any_other(installed: Path) -> None:
    config = load_config(None, parse_overrides(["--task", "counting", "--task.length", "5"]))
    assert [p.content for p in config.task.load(lambda content: (str(content), (1,))).train] == list("01234")
    check(config)
    assert "counting       Counts upwards." in task_lines()
    assert "task.length" in setting_names()


def test_its_settings_are_written_and_read_again(installed: Path, tmp_path: Path) -> None:
    config = Config.embedded(task={"kind": "counting", "length": 5})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert "length = 5" in to_toml(config)
    assert parse_config(read_toml(tmp_path / "config.toml"), {}) == config
    assert Config.model_validate(config.model_dump()) == config
    assert headline_of_run(tmp_path).metric == "counted"


@pytest.mark.parametrize(
    ("line", "told"),
    [("--task.length 0", r"task\.length = '0': "), ("--task.lenth 5", r"unknown setting task\.lenth: did you mean")],
)
def test_faults_of_its_settings_are_told_like_those_of_others(installed: Path, line: str, told: str) -> None:
    with pytest.raises(TbaError, match=told):
        load_config(None, parse_overrides(["--task", "counting", *line.split()]))


def test_it_is_imported_when_it_is_asked_for(installed: Path) -> None:
    load_config(None, parse_overrides(["--task", "arithmetic"]))
    assert "counting_task" not in sys.modules
    load_config(None, parse_overrides(["--task", "counting"]))
    assert "counting_task" in sys.modules


@pytest.mark.parametrize(
    ("code", "target", "told"),
    [
        ("import no_such_module", "counting_task:Settings", "which counting-task adds.*No module named"),
        ("Settings = 3", "counting_task:Settings", "no subclass of tba.tasks.TaskSettings"),
        ("", "counting_task:Settings", "cannot be imported: .*no attribute 'Settings'"),
    ],
)
def test_a_broken_package_is_told_and_harms_no_other_task(forget: Path, code: str, target: str, told: str) -> None:
    install(forget, code, target)
    load_config(None, parse_overrides(["--task", "arithmetic"]))
    with pytest.raises(TbaError, match=told):
        load_config(None, parse_overrides(["--task", "counting"]))
    assert any("counting-task" in line for line in task_lines())
    assert "trainer.num_steps" in setting_names()


def test_it_does_not_replace_one_of_ours(forget: Path) -> None:
    install(forget, CODE, kind="arithmetic")
    assert tasks.settings_of("arithmetic").__module__ == "tba.tasks.arithmetic"


def test_an_unknown_kind_names_the_installed_ones_too(installed: Path) -> None:
    with pytest.raises(TbaError, match=r"unknown task 'nope': one of arithmetic, .*, counting"):
        load_config(None, parse_overrides(["--task", "nope"]))


def test_the_command_line_lists_it(installed: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tba.cli", "tasks"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(installed)},
    )
    assert "counting       Counts upwards." in shown.stdout
