"""The command line. Arguments are parsed before anything heavy is imported, so that mistakes are told at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path

from tba.config.commands import usage
from tba.types import TbaError

USAGE = usage()

Arguments = list[str]
HELP_FLAGS = {"-h", "--help"}
RUNS = "runs"
"""Where commands look for runs: the default of run.root."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the run failed, 2 a mistake in what was asked for, 130 stopped by Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a `?` where an encoding lacks a character, and no error
    rest = list(sys.argv[1:] if arguments is None else arguments)
    if rest[:1] == ["help"] and rest[1:]:  # `tba help train` is `tba train --help`
        rest = [rest[1], "--help", *rest[2:]]
    if not rest or rest[0] in (*HELP_FLAGS, "help"):
        print(USAGE, end="")
        return 0
    if rest[0] in ("-V", "--version"):
        from tba import __version__

        print(__version__)
        return 0
    name = rest.pop(0)
    command = COMMANDS.get(name)
    try:
        if command is None:
            near = get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise TbaError(f"no command {name!r}: {hint}The commands are {', '.join(COMMANDS)}")
        if HELP_FLAGS & set(rest):
            _help(name, _topic(rest))
            return 0
        return command(rest)
    except TbaError as error:
        print(f"tba: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        if name != "train":  # which says more
            print("stopped", file=sys.stderr)
        return 130


def _train(rest: Arguments) -> int:
    from tba.config.settings import load_config
    from tba.config.text import parse_overrides

    resume = _take_value(rest, "--resume")
    overwrite = _take_flag(rest, "--overwrite")
    path = _take_positional(rest)
    overrides = parse_overrides(rest)
    if resume is not None and (path or overwrite):
        raise TbaError("--resume goes with neither a CONFIG nor --overwrite: the run has its settings already")
    config = load_config(path, overrides) if resume is None else None

    from tba import api
    from tba.launch.supervise import TrainerDiedError

    try:
        result = api.start(config, overwrite=overwrite) if config else api.resume(resume or "", overrides)
    except TrainerDiedError as error:
        print(f"{error.trace}tba: {error}", file=sys.stderr)
        return 1
    return 0 if result.finished or result.stopped_early else 130


def _replay(rest: Arguments) -> int:
    from tba.config.text import parse_overrides

    run = _take_positional(rest)
    steps = _take_value(rest, "--steps")
    if run is None:
        raise TbaError("name the run to replay: tba replay RUN [--objective.key value …]")
    if steps is not None and not (steps.isdecimal() and int(steps)):
        raise TbaError(f"--steps = {steps!r} is no number of steps: give how many of the first steps to replay")

    from tba.launch.replay import replay_run

    finished = replay_run(Path(run), parse_overrides(rest), int(steps) if steps else None)[1]
    return 0 if finished else 130


def _sweep(rest: Arguments) -> int:
    dry_run = _take_flag(rest, "--dry-run")
    path = _take_positional(rest)
    if path is None or rest:
        raise TbaError("name one file with the space of settings: tba sweep SPACE.toml [--dry-run]")

    from tba.sweep.search import run_sweep

    return run_sweep(Path(path), dry_run=dry_run)


def _eval(rest: Arguments) -> int:
    from tba.config.text import parse_overrides
    from tba.runs.run_config import config_for_model

    model = _take_positional(rest) or str(_newest_run())
    output = _take_value(rest, "--output")
    config = config_for_model(_model_of(model), parse_overrides(rest))

    from tba.launch.evaluation import evaluate_model

    evaluate_model(config, Path(output) if output else None)
    return 0


def _export(rest: Arguments) -> int:
    dtype = _take_value(rest, "--dtype")
    flags = {flag: _take_flag(rest, f"--{flag}") for flag in ("merged", "adapter", "best", "trust-remote-code")}
    source, folder = _take_positional(rest), _take_positional(rest)
    if source is None or folder is None or rest:
        raise TbaError(
            "name what to export and a new folder: tba export RUN_OR_MODEL FOLDER [--merged | --adapter] [--best] "
            "[--dtype bfloat16]"
        )
    if flags["merged"] and flags["adapter"]:
        raise TbaError("--merged and --adapter are two forms of a model: choose one")

    from tba.launch.export import export

    serve = export(
        source,
        Path(folder),
        form="adapter" if flags["adapter"] else "merged",
        dtype=dtype,
        best=flags["best"],
        trust_remote_code=flags["trust-remote-code"],
        tell=print,
    )
    print(f"Written to {folder}. Serve it with vLLM:\n\n  {serve}")
    return 0


def _runs(rest: Arguments) -> int:
    from tba.runs.listing import show_runs

    as_json = _take_flag(rest, "--json")
    folder = _take_positional(rest)
    if rest:
        raise TbaError(f"tba runs takes a folder and --json, but got {rest[0]!r}")
    show_runs(Path(folder or RUNS), as_json=as_json)
    return 0


def _status(rest: Arguments) -> int:
    from tba.runs.status import show_status

    run = _take_positional(rest)
    if rest:
        raise TbaError(f"tba status takes one run, but got {rest[0]!r}")
    return show_status(Path(run) if run else _newest_run())


def _samples(rest: Arguments) -> int:
    from tba.samples.query import Query, read_num, read_steps

    flags = {flag: _take_flag(rest, f"--{flag}") for flag in ("best", "worst", "full", "json")}
    prompt, step, num = (_take_value(rest, f"--{name}") for name in ("prompt", "step", "num"))
    named = _take_positional(rest)
    if rest:
        raise TbaError(f"unexpected argument {rest[0]!r}: tba samples --help lists what there is")
    if flags["best"] and flags["worst"]:
        raise TbaError("--best and --worst are two orders: choose one")
    query = Query(
        order="best" if flags["best"] else "worst" if flags["worst"] else "newest",
        prompt=prompt,
        steps=None if step is None else read_steps(step),
        num=4 if num is None else read_num(num),
    )

    from tba.samples.command import show_samples

    run = _newest_run() if named is None else Path(named)
    show_samples(run, query, full=flags["full"], as_json=flags["json"])
    return 0


def _compare(rest: Arguments) -> int:
    from tba.runs.compare import AXES, show_comparison

    as_json = _take_flag(rest, "--json")
    plot, axis = _take_value(rest, "--plot"), _take_value(rest, "--x")
    if not rest or any(argument.startswith("--") for argument in rest):
        raise TbaError("name the runs to compare: tba compare RUN RUN … [--plot FILE.png] [--x steps] [--json]")
    if axis is not None and axis not in AXES:
        raise TbaError(f"--x = {axis!r} is not known: one of {', '.join(AXES)}")
    if axis is not None and plot is None:
        raise TbaError("--x is the axis of a plot: give --plot FILE.png too")
    show_comparison([Path(run) for run in rest], Path(plot) if plot else None, axis=axis, as_json=as_json)
    return 0


def _sft(rest: Arguments) -> int:
    from tba.supervised.options import SftOptions, parse_options

    options = parse_options(SftOptions, _taken_model(rest), rest)

    from tba.supervised.sft import run

    run(options)
    return 0


def _reward_model(rest: Arguments) -> int:
    from tba.supervised.options import RewardModelOptions, parse_options

    options = parse_options(RewardModelOptions, _taken_model(rest), rest)

    from tba.supervised.reward_model import run

    run(options)
    return 0


def _classifier(rest: Arguments) -> int:
    from tba.supervised.options import ClassifierOptions, parse_options

    options = parse_options(ClassifierOptions, _taken_model(rest), rest)

    from tba.supervised.classifier import run

    run(options)
    return 0


def _config(rest: Arguments) -> int:
    from tba.config.settings import load_config
    from tba.config.template import template
    from tba.config.text import parse_overrides

    path = _take_positional(rest)
    print(template(load_config(path, parse_overrides(rest))), end="")
    return 0


def _tasks(rest: Arguments) -> int:
    from tba.config.help import task_lines

    if rest:
        raise TbaError(f"tba tasks takes no arguments, but got {rest[0]!r}")
    print("\n".join(task_lines()))
    return 0


def _configs(rest: Arguments) -> int:
    from tba.config.ready import ready_lines

    if rest:
        raise TbaError(f"tba configs takes no arguments, but got {rest[0]!r}: tba config {rest[0]} prints one")
    print("\n".join(ready_lines()))
    return 0


def _fetch(rest: Arguments) -> int:
    from tba.fetch import MODELS, fetch

    name, folder = _take_positional(rest), _take_positional(rest)
    if name is None or rest:
        raise TbaError(f"name what to fetch: tba fetch NAME [FOLDER], NAME one of {', '.join(MODELS)}")
    fetch(name, Path(folder) if folder else None)
    return 0


COMMANDS = {
    "train": _train,
    "replay": _replay,
    "sweep": _sweep,
    "eval": _eval,
    "export": _export,
    "runs": _runs,
    "status": _status,
    "samples": _samples,
    "compare": _compare,
    "sft": _sft,
    "reward-model": _reward_model,
    "classifier": _classifier,
    "config": _config,
    "tasks": _tasks,
    "configs": _configs,
    "fetch": _fetch,
}


def _help(name: str, topic: str | None) -> None:
    """Of a command, or of what stands after `--help`."""
    from tba.config.command_help import command_text

    if name == "replay":
        from tba.runs.replays import is_changeable

        print(command_text(name, topic, is_changeable), end="")
        return
    more = ""
    if name in ("sft", "reward-model", "classifier"):
        from tba.supervised import options

        more = options.options_text(options.KINDS[name])
    if name == "sweep":
        from tba.sweep.settings import settings_text as sweep_text

        more = sweep_text()
    print(command_text(name, topic, more=more), end="")


def _topic(rest: Arguments) -> str | None:
    """The word after `--help`, if there is one."""
    after = [rest[i + 1 :] for i, word in enumerate(rest) if word in HELP_FLAGS]
    return after[0][0] if after and after[0] else None


def _take_positional(rest: Arguments) -> str | None:
    return rest.pop(0) if rest and not rest[0].startswith("-") else None


def _taken_model(rest: Arguments) -> str | None:
    """The model that is named first; the user is told which it is, if a run is named."""
    model = _take_positional(rest)
    return None if model is None else _model_of(model)


def _model_of(source: str) -> str:
    from tba.runs.model_of import model_of

    chosen = model_of(source)
    if chosen.note:
        print(chosen.note)
    return chosen.path


def _newest_run() -> Path:
    from tba.runs.newest import newest_run

    run = newest_run(Path(RUNS))
    print(f"the newest run is taken: {run}", file=sys.stderr)  # standard output may be JSON
    return run


def _take_flag(rest: Arguments, flag: str) -> bool:
    if flag in rest:
        rest.remove(flag)
        return True
    return False


def _take_value(rest: Arguments, flag: str) -> str | None:
    for i, argument in enumerate(rest):
        if argument.startswith(f"{flag}="):
            return rest.pop(i).partition("=")[2]
        if argument == flag:
            rest.pop(i)
            if i >= len(rest) or rest[i].startswith("--"):
                raise TbaError(f"{flag} needs a value")
            return rest.pop(i)
    return None


if __name__ == "__main__":
    sys.exit(main())
