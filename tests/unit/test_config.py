from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tba
from tba.config.help import sections, settings_markdown, settings_text, task_lines
from tba.config.settings import Config, load_config, parse_config, to_toml
from tba.config.text import parse_overrides
from tba.objectives import KINDS
from tba.policy.names import EMBEDDED_MODEL
from tba.tasks import arithmetic, custom, kinds, redteam, settings_of
from tba.types import TbaError

OWN = "--model x --task.data y --reward a:b"


def from_line(line: str, path: Path | None = None) -> Config:
    """What `tba train [CONFIG] <line>` runs with."""
    return load_config(path, parse_overrides(shlex.split(line)))


def fault(line: str, path: Path | None = None) -> str:
    with pytest.raises(TbaError) as caught:
        from_line(line, path)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---------------------------------------------------------------------------------------------------------------------
# Layers
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "--trainer.learning-rate 1e-6 --trainer.synchronous --trainer.sync-period 1",
        "--trainer.learning_rate=1e-6 --trainer.synchronous=true --trainer.sync_period=1",
        "--trainer.sync-period=1 --trainer.synchronous --trainer.learning-rate 0.000001",
    ],
)
def test_overrides_may_be_written_in_several_ways(line: str) -> None:
    trainer = from_line(line).trainer
    assert (trainer.learning_rate, trainer.synchronous, trainer.sync_period) == (1e-6, True, 1)


def test_a_negative_number_is_a_value_and_no_flag() -> None:
    assert from_line("--evaluation.success-reward -1").evaluation.success_reward == -1
    assert from_line("--evaluation.success-reward=-1e-3").evaluation.success_reward == -0.001


def test_of_two_values_for_a_setting_the_last_wins() -> None:
    assert from_line("--trainer.num-steps 3 --trainer.num-steps 4").trainer.num_steps == 4


def test_without_a_model_a_run_is_the_embedded_one() -> None:
    config = from_line("--trainer.num-steps 3")
    assert config.model.path == EMBEDDED_MODEL
    assert config == Config.embedded(trainer={"num_steps": "3"})
    assert config.model_copy(update={"trainer": Config.embedded().trainer}) == Config.embedded()


def test_refining_the_embedded_model_does_not_replace_it() -> None:
    model = from_line("--model.precision bfloat16").model
    assert (model.path, model.precision) == (EMBEDDED_MODEL, "bfloat16")


def test_a_model_of_ones_own_starts_from_the_plain_defaults() -> None:
    assert from_line("--model x") == Config(model="x")
    assert from_line("--model.path x") == Config(model={"path": "x"})


def test_a_file_lies_between_defaults_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "m"\n[trainer]\nnum_steps = 5\nnum_groups = 3\n', "utf-8")
    config = from_line("--trainer.num-groups 4 --model.precision bfloat16", path)
    assert (config.trainer.num_steps, config.trainer.num_groups) == (5, 4)
    assert (config.model.path, config.model.precision) == ("m", "bfloat16")
    assert from_line("--model other", path).model.path == "other"


# ---------------------------------------------------------------------------------------------------------------------
# Shorthand
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["--model x", "--model=x", "--model.path x"])
def test_a_model_may_be_given_by_name(line: str) -> None:
    assert from_line(line).model.path == "x"


@pytest.mark.parametrize(
    "line",
    [
        "--task.data y",
        "--task custom --task.data y",
        "--task.data y --task custom",
        "--task.kind custom --task.data y",
    ],
)
def test_data_makes_a_custom_task(line: str) -> None:
    assert from_line(f"--model x --reward a:b {line}").task == custom.Settings(data="y")


def test_a_task_by_name_keeps_its_settings() -> None:
    assert from_line("--task arithmetic --task.difficulty hard").task == arithmetic.Settings(difficulty="hard")


def test_another_task_drops_the_settings_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "m"\n[task]\nkind = "arithmetic"\ndifficulty = "hard"\n', "utf-8")
    assert from_line("--task.data y --reward a:b", path).task == custom.Settings(data="y")
    assert from_line("--task.num-eval 7", path).task == arithmetic.Settings(difficulty="hard", num_eval=7)


@pytest.mark.parametrize(
    ("line", "functions", "weights"),
    [
        ("--reward a:b", ("a:b",), ()),
        ("--reward a:b,c:d", ("a:b", "c:d"), ()),
        ("--reward 'a:b, c:d' --reward.weights 1,-0.5", ("a:b", "c:d"), (1.0, -0.5)),
        ("--reward.weights 2 --reward a:b", ("a:b",), (2.0,)),
        ("--reward.functions a:b,c:d", ("a:b", "c:d"), ()),
    ],
)
def test_rewards_may_be_given_by_name(line: str, functions: tuple[str, ...], weights: tuple[float, ...]) -> None:
    reward = from_line(line).reward
    assert (reward.functions, reward.weights) == (functions, weights)


# ---------------------------------------------------------------------------------------------------------------------
# Faults: one line that names the setting and the remedy
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--trainer.nope 3", "unknown setting trainer.nope: `tba config` lists the settings"),
        ("--nope 3", "unknown setting nope: `tba config` lists the settings"),
        (
            "--trainer.num-step 3",
            "unknown setting trainer.num_step: did you mean trainer.num_steps? `tba config`",
        ),
        (
            "--learning-rate 1e-6",
            "unknown setting learning_rate: did you mean trainer.learning_rate? `tba config`",
        ),
        ("--task nope", "unknown task 'nope': one of arithmetic, addition"),
        ("--objective.kind nope", "unknown objective 'nope': one of 'trajectory_balance'"),
        ("--trainer.learning-rate abc", "trainer.learning_rate = 'abc': input should be a valid number"),
        ("--trainer.num-steps 2.5", "trainer.num_steps = '2.5': input should be a valid integer"),
        ("--trainer.num-steps", "trainer.num_steps needs a value: input should be a valid integer"),
        ("--model.precision float16", "model.precision = 'float16': input should be 'auto', 'float32' or 'bfloat16'"),
        ("--engine.temperature 0", "engine.temperature = '0': input should be greater than 0"),
        ("--objective.beta nan", "objective.beta = 'nan': input should be a finite number"),
        ("--buffer.recent-fraction 1.5", "buffer.recent_fraction = '1.5': input should be less than or equal to 1"),
        (
            "--buffer.recent-fraction -0.1",
            "buffer.recent_fraction = '-0.1': input should be greater than or equal to 0",
        ),
        ("--buffer.uniform-fraction 2", "buffer.uniform_fraction = '2': input should be less than or equal to 1"),
        (
            "--trainer.group-size 32",
            "trainer.group_size = 32 is more than searcher.num_responses = 16: draw fewer or generate more",
        ),
        (
            "--buffer.capacity-per-prompt 3",
            "buffer.capacity_per_prompt = 3 is less than trainer.group_size = 16: a group would never fit",
        ),
        (
            "--buffer.capacity 10 --trainer.num-groups 8",
            "buffer.capacity = 10 is less than trainer.num_groups x searcher.num_responses = 128",
        ),
        ("--trainer.group-size 1", "trainer.group_size = '1': input should be greater than or equal to 2"),
        ("--trainer.synchronous", "trainer.synchronous needs trainer.sync_period = 1"),
        (
            "--trainer.synchronous --trainer.sync-period 1 --trainer.max-staleness 3",
            "trainer.synchronous means staleness 0: leave trainer.max_staleness out",
        ),
        (
            "--trainer.max-staleness 3 --trainer.sync-period 5",
            "trainer.max_staleness = 3 cannot be kept with sync_period = 5: use at least 4, or a smaller sync_period",
        ),
        (
            "--trainer.synchronous --trainer.sync-period 1 --trainer.staleness 0",
            "trainer.synchronous means trainer.staleness = 0: leave one of the two out",
        ),
        (
            "--trainer.staleness 3 --trainer.max-staleness 3",
            "trainer.staleness is the age of all data: leave trainer.max_staleness out",
        ),
        ("--trainer.staleness -1", "trainer.staleness = '-1': input should be greater than or equal to 0"),
        (
            "--reference.reset-period 5",
            "reference.reset_period needs reference.where = 'learner': the reference changes with the policy there",
        ),
        ("--reference.ema 0.9", "reference.ema needs reference.where = 'learner'"),
        ("--reference.ema 1 --reference.where learner", "reference.ema = '1': input should be less than 1"),
        (
            "--reference.ema 0.9 --reference.reset-period 5 --reference.where learner",
            "reference.reset_period and reference.ema both move the reference: choose one of them",
        ),
        (
            "--reference.reset-optimizer --reference.ema 0.9 --reference.where learner",
            "reference.reset_optimizer needs reference.reset_period: say how often the reference is reset",
        ),
        (
            "--reference.ema 0.9 --reference.where learner --reference.dtype bfloat16",
            "reference.ema keeps the reference beside the policy, in float32: leave reference.device and",
        ),
        ("--trainer.warmup-steps 301", "trainer.warmup_steps + decay_steps exceed trainer.num_steps"),
        ("--objective.beta-schedule linear", "objective.beta_final is missing: beta_schedule = 'linear' needs it"),
        ("--reward a:b --reward.weights 1,2", "reward.weights has 2 numbers for 1 reward.functions"),
        ("--task.data y", "model is missing: task.data needs a model of yours, name it with --model PATH_OR_ID"),
        ("--task.data y --model.precision bfloat16", "model is missing: task.data needs a model of yours"),
        ("--model x --task.data y", "reward is missing: name yours with --reward module:function"),
        ("--model x --task custom --reward a:b", "task.data is missing: set it with --task.data"),
        ("steps 3", "unexpected argument 'steps': settings look like --section.key value"),
        ("-x 3", "unexpected argument '-x': settings look like --section.key value"),
        ("--", "unexpected argument '--'"),
    ],
)
def test_faults_are_told_in_one_line(line: str, message: str) -> None:
    assert message in fault(line)


def test_several_faults_are_told_at_once() -> None:
    assert fault("--trainer.nope 3 --engine.temperature 0").count(";") == 1


def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    assert fault("", path) == f"no configuration file at {path}: check the path, or `tba configs` lists the ready ones"
    path.write_text("model = \n", "utf-8")
    assert fault("", path).startswith(f"{path} is not valid TOML: ")
    path.write_bytes(b"\xff\xfe")
    assert fault("", path).startswith(f"{path} is not valid TOML: ")
    path.write_text("[trainer]\nnum_steps = 3\n", "utf-8")
    assert fault("", path) == "model is missing: set it with --model"
    assert fault("", tmp_path) == f"cannot read {tmp_path}: Is a directory"


def test_settings_cannot_be_changed_later() -> None:
    config = Config.embedded()
    with pytest.raises(ValueError, match="frozen"):
        config.trainer.num_steps = 3  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------------------------
# Resolved settings as TOML
# ---------------------------------------------------------------------------------------------------------------------


def round_trip(config: Config) -> Config:
    return parse_config(tomllib.loads(to_toml(config)), {})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--task.difficulty hard --trainer.max-staleness 7 --objective.beta-schedule jump --objective.beta-final 1e-3",
        f"{OWN} --task.eval-data z --task.system-prompt 'Say \"hi\".' --reward.weights 0.1 --metrics.wandb",
    ],
)
def test_written_settings_read_the_same(line: str) -> None:
    config = from_line(line)
    assert round_trip(config) == config


texts = st.text(st.characters(exclude_categories=["Cs"]))  # lone surrogates are no text and fit no file
paths = st.from_regex(r"\w+:\w+", fullmatch=True)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(
    name=texts, prompt=texts, functions=st.lists(st.from_regex(r"\w+:\w+", fullmatch=True), min_size=1), rate=positive
)
@example(name='"\\\n\t\x00\x1f\x7f\u2028', prompt="", functions=["a:b"], rate=5e-324)
@settings(max_examples=60, deadline=None)
def test_written_settings_read_the_same_whatever_they_hold(
    name: str, prompt: str, functions: list[str], rate: float
) -> None:
    overrides: dict[str, Any] = {
        "model": name,
        "run": {"name": name},
        "task": {"data": name, "system_prompt": prompt},
        "reward": {"functions": functions},
        "trainer": {"learning_rate": rate},
    }
    config = parse_config({}, overrides)
    assert round_trip(config) == config


# ---------------------------------------------------------------------------------------------------------------------
# Settings as text
# ---------------------------------------------------------------------------------------------------------------------


def test_every_setting_is_described() -> None:
    described = {setting.name: setting for _, _, listed in sections() for setting in listed}
    assert [name for name, setting in described.items() if not setting.meaning] == []
    assert [title for title, about, _ in sections() if not about] == []
    dumped: dict[str, Any] = from_line(OWN).model_dump()
    dumped["task"] = {key for kind in kinds() for key in settings_of(kind).model_fields}
    dumped["objective"] = {
        key for kind in KINDS for key in import_module(f"tba.objectives.{kind}").Settings.model_fields
    }
    assert set(described) == {f"{section}.{key}" for section, keys in dumped.items() for key in keys}


def test_help_and_documentation_name_every_setting() -> None:
    for _, _, listed in sections():
        for setting in listed:
            assert f"--{setting.name.replace('_', '-')} " in settings_text()
            assert f"| `{setting.name}` |" in settings_markdown()
    assert {line.split()[0] for line in task_lines()} == set(kinds())


def test_defaults_shown_are_the_defaults_used() -> None:
    """A default read back from the help gives the same settings."""
    shown = [
        (s.name, s.default)
        for title, _, listed in sections()
        for s in listed
        if "=" not in title or "arithmetic" in title
    ]
    line = " ".join(f"--{name}={shlex.quote(default)}" for name, default in shown if default)
    assert from_line(f"--model x {line}") == Config(model="x")


def test_the_embedded_settings_are_a_file_like_any_other() -> None:
    """Somebody who copies it and runs the copy gets the demo."""
    assert load_config(Path(tba.__file__).with_name("embedded.toml"), {}) == from_line("") == Config.embedded()


def test_settings_and_the_command_line_load_no_torch() -> None:
    """They answer before anything heavy is imported."""
    heavy = ("torch", "transformers", "datasets", "pyarrow")
    ours = "tba.config.settings, tba.config.help, tba.cli"
    code = f"import sys, {ours}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_data_for_a_task_that_takes_data_leaves_it_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "x"\n[task]\nkind = "redteam"\nvictim = "v"\nclassifier = "c"\n', "utf-8")
    config = load_config(file, {"task": {"data": "rows.jsonl"}})
    assert isinstance(config.task, redteam.Settings)
    assert (config.task.data, config.task.victim) == ("rows.jsonl", "v")


def test_the_default_pass_of_a_small_model_fits_an_ordinary_machine() -> None:
    """SmolLM2-135M was measured to take 1.85 MB for each token of a pass, beside weights and the optimizer's state."""
    assert 1.85e6 * from_line(OWN).trainer.pass_tokens < 4e9


def test_a_step_of_the_demo_is_one_pass() -> None:
    """Several passes of so small a model take a quarter more time."""
    config = Config.embedded()
    longest_prompt = len("9+9+9+9=\n")
    group = longest_prompt + config.trainer.group_size * config.engine.max_new_tokens
    assert config.trainer.num_groups * group <= config.trainer.pass_tokens


def test_of_a_setting_that_is_given_twice_the_last_counts() -> None:
    """Also where one of them is short for the other."""
    for words in (["--model.path", "a", "--model", "b"], ["--model", "a", "--model.path", "b"]):
        assert parse_overrides([*words, "--model.lora-rank", "4"]) == {"model": {"path": "b", "lora_rank": "4"}}
