"""docs/python-api.md: signatures and docstrings of what `import tba` offers, in the order in which one needs them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import tba
from tba.rewards.scoring import TrainerState
from tba.runs.callbacks import Callback

HEAD = """\
# Python

<!-- Written by `make docs` from the docstrings of the package. Do not edit. -->

After this page you can train, resume and follow a run from Python, and know what a reward function is given.

```python
import tba

if __name__ == "__main__":
    result = tba.train(
        model="models/SmolLM2-135M-Instruct",
        dataset="rows.jsonl",
        reward="rewards.py:brief_and_right",
        trainer={"learning_rate": 2e-5, "num_steps": 30},
        run={"name": "capitals"},
    )
    print(result.summary["held_out_reward_last"], result.best_model)
```

Sections of settings are keyword arguments: `trainer={"learning_rate": 2e-5}` is `--trainer.learning-rate 2e-5`.
[Configuration](configuration.md) has all of them.

"""
RESULT_HEAD = """\
| attribute | |
| --- | --- |
| `run` | The folder of the run. |
| `finished` | Whether the run made all its steps. |
"""
REWARDS = '''\
## In a reward function

A function asks for what it needs by the names of its parameters. Lists have one entry for each response.
[Your own data and reward](data-and-rewards.md) explains every parameter, with examples.

```python
def my_reward(texts, answer, trainer_state, log_extra, log_metric, **columns):
    log_extra("length", [len(text) for text in texts])  # a value for each response: kept in the rollout log
    log_metric("longest", max(map(len, texts)))  # one number: rewards/my_reward/longest in the metrics
    progress = trainer_state.global_step / trainer_state.max_steps
    return [float(truth in text) - 0.01 * progress * len(text) for text, truth in zip(texts, answer)]


def warm_up_rewards():
    """Called once in each reward process, before the first batch: the place for slow imports."""
    import sympy  # noqa: F401
```

'''


def python_api_page() -> str:
    objectives = (tba.Objective, tba.Evidence, tba.Loss)
    parts = [
        HEAD,
        function("tba.train", tba.train),
        function("tba.resume", tba.resume),
        described("tba.Result", tba.Result),
        RESULT_HEAD + properties(tba.Result),
        described("Callbacks", Callback),
        methods(Callback, ("on_step", "on_evaluation")),
        described("tba.StopRun", tba.StopRun),
        REWARDS,
        described("trainer_state", TrainerState, level=3),
        fields(TrainerState),
        described("tba.Config", tba.Config),
        described("tba.TbaError", tba.TbaError),
        "## Objectives of your own\n\n[The objective](objective.md#an-objective-of-your-own) has an example.\n",
        *(described(f"tba.{cls.__name__}", cls, level=3) for cls in objectives),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def function(name: str, called: Callable[..., Any]) -> str:
    return f"## {name}\n\n```text\n{signature(name, called)}\n```\n\n{prose(called)}\n"


def signature(name: str, called: Callable[..., Any]) -> str:
    """One parameter a line. Annotations are texts here, and stay as they were written."""
    lines, has_star = [], False
    for parameter in inspect.signature(called).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            lines.append("*")
            has_star = True
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{star}{parameter.name}: {parameter.annotation}{default}")
    returns = inspect.signature(called).return_annotation
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {returns}"


def described(name: str, cls: type, level: int = 2) -> str:
    return f"{'#' * level} {name}\n\n{prose(cls)}\n"


def properties(cls: type) -> str:
    rows = [(name, value) for name, value in vars(cls).items() if isinstance(value, property)]
    return "".join(f"| `{name}` | {' '.join(prose(value).split()) or summary_of(name)} |\n" for name, value in rows)


def summary_of(name: str) -> str:
    assert name == "summary", f"{name} has no docstring"
    return "The numbers of `summary.json` ([metrics](metrics.md#summaryjson)); empty if the run has not written it."


def methods(cls: type, names: tuple[str, ...]) -> str:
    rows = "".join(f"| `{name}(step, metrics)` | {' '.join(prose(getattr(cls, name)).split())} |\n" for name in names)
    return f"| method | |\n| --- | --- |\n{rows}"


def fields(cls: type) -> str:
    """Attributes of a class with the texts under them."""
    found = re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', inspect.getsource(cls), re.MULTILINE | re.DOTALL)
    rows = "".join(f"| `{name}` | {' '.join(text.split())} |\n" for name, text in found)
    return f"| attribute | |\n| --- | --- |\n{rows}"


def prose(documented: Any) -> str:
    """A docstring as Markdown: pages it names become links."""
    text = inspect.getdoc(documented) or ""
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", text)
