"""Finds the `tba …` and `python -m benchmarks …` commands that pages, examples and configurations show, and says what
is wrong with each.

Nothing is run. Upper-case words, `…` and words in brackets are placeholders.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.__main__ import parser
from benchmarks.suite import COMMAND, PARTS
from tba.cli import COMMANDS, main
from tba.config.commands import COMMANDS as HELP
from tba.config.help import setting_names
from tba.config.settings import Config, load_config
from tba.config.text import parse_overrides
from tba.fetch import MODELS
from tba.supervised.options import KINDS, parse_options
from tba.types import TbaError

TAKES_SETTINGS = ("train", "eval", "config")
FREE_TABLES = ("--task.settings.", "--model.chat-template-kwargs.", "--chat-template-kwargs.")
"""Settings whose names are not ours: they go to another package, or to a chat template."""


NO_SETTINGS = ("model.generate", "model.name")
"""Look like settings: a method of transformers, and a setting of prime-rl."""
FILES = (".py", ".toml", ".jsonl", ".json", ".md")
OURS = (("tba",), (COMMAND,))


@dataclass(frozen=True)
class Command:
    place: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)}"

    @property
    def name(self) -> str:
        return self.words[1]

    @property
    def options(self) -> list[str]:
        return [word.partition("=")[0] for word in self.words if word.startswith("--") and "…" not in word]

    @property
    def has_placeholders(self) -> bool:
        return any(re.match(r"\[|--section\.key$|[A-Z_]{2,}$|.*[…$]", word) for word in self.words)


def commands_in(path: Path, root: Path) -> list[Command]:
    place = str(path.relative_to(root))
    return [Command(place, words) for text in shown(path) for words in split(text)]


def shown(path: Path) -> Iterator[str]:
    """Pieces of a file that hold commands: code of a page, comments of a configuration, the opening of a program."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        yield from re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        without_blocks = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        yield from re.findall(r"`([^`]+)`", without_blocks)
    elif path.suffix == ".toml":
        comments = "\n".join(line[1:] for line in text.splitlines() if line.startswith("#"))
        yield from command_lines(comments)
        yield from re.findall(r"`([^`]+)`", comments)
    elif path.suffix == ".py":
        yield from command_lines(text)


def command_lines(text: str) -> Iterator[str]:
    """Indented lines that begin with `tba`, with the lines that continue them."""
    yield from re.findall(r"^ +(tba (?:.*\\\n)*.*)$", text, re.MULTILINE)


def split(text: str) -> list[tuple[str, ...]]:
    """The `tba` commands of a piece of shell, with the variables that it sets put in."""
    text = text.replace("\\\n", " ")
    variables = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    for name, value in variables.items():
        text = re.sub(rf"\${name}\b", value, text)
    found = []
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # prose with an apostrophe
            continue
        found += [part for part in map(with_one_name, simple_commands(words)) if part[:1] in OURS and len(part) > 1]
    return found


def with_one_name(words: tuple[str, ...]) -> tuple[str, ...]:
    """The three words that run the benchmarks as one."""
    return (COMMAND, *words[3:]) if " ".join(words[:3]) == COMMAND else words


def simple_commands(words: list[str]) -> Iterator[tuple[str, ...]]:
    part: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set(";&|()<>"):
            while part and (re.fullmatch(r"\w+=.*", part[0]) or part[0] == "do"):
                part.pop(0)
            yield tuple(part)
            part = []
        else:
            part.append(word)


def fault(command: Command) -> str | None:
    """What would go wrong if one typed it; None if nothing is known to."""
    if command.words[0] == COMMAND:
        return benchmark_fault(command)
    if command.name not in COMMANDS:
        return f"there is no command {command.name!r}" if is_literal(command.name) else None
    known = options_of(command.name)
    for option in command.options:
        if option.startswith(FREE_TABLES) or option == "--section.key":
            continue
        if option not in known:
            return f"tba {command.name} has no {option}"
    return positional_fault(command) or (None if command.has_placeholders else parser_fault(command))


def benchmark_fault(command: Command) -> str | None:
    known = {option for action in parser()._actions for option in action.option_strings}
    unknown = [option for option in command.options if option not in known]
    if unknown:
        return f"{COMMAND} has no {unknown[0]}"
    first = command.words[1]
    is_known = not is_literal(first) or first in {*PARTS, "page", "profile"}
    return None if is_known else f"there is no benchmark {first!r}"


def unknown_options(path: Path) -> list[str]:
    """Options that a page names by themselves, as in `--task.num-eval 8`, and no command has."""
    known = {option for name in COMMANDS for option in options_of(name)}
    known |= {option for action in parser()._actions for option in action.option_strings}
    words = [word for piece in shown(path) for word in re.findall(r"^--[a-z][\w.-]*(?!…)\b", piece)]
    return [word for word in words if word not in known and not word.startswith(FREE_TABLES)]


def unknown_settings(path: Path) -> list[str]:
    """Settings that a page names, as in `task.num_eval`, and that do not exist."""
    known = {*setting_names(), *NO_SETTINGS}
    named = rf"(?<![\w/.-])(?:{'|'.join(Config.model_fields)})\.[a-z]\w*"
    words = [word for piece in shown(path) for word in re.findall(named, piece)]
    return [word for word in words if word not in known and not word.endswith(FILES)]


def is_literal(word: str) -> bool:
    return re.fullmatch(r"[a-z][a-z0-9_-]*", word) is not None


@cache
def options_of(name: str) -> frozenset[str]:
    """By the command's own help, without what is said there of other commands, and by all that it says of settings."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main([name, "--help"])
        if HELP[name].takes_settings:
            main([name, "--help", "all"])
    lines = [line for line in text.getvalue().splitlines() if not re.match(rf"\s+tba (?!{name}\b)", line)]
    options = {option for line in lines for option in re.findall(r"--[a-z][\w.-]*", line)}
    options |= {"--help"}
    if name in TAKES_SETTINGS:
        options |= {"--task", "--model", "--reward"}
    if name in KINDS and "--task" in options:
        settings = options_of("train")
        options |= {"--data"} | {option for option in settings if option.startswith("--task.")}
    return frozenset(options)


def positional_fault(command: Command) -> str | None:
    """A model to fetch that is named must be there."""
    first = command.words[2] if len(command.words) > 2 else ""
    if command.name == "fetch" and is_literal(first) and first not in MODELS:
        return f"there is nothing to fetch called {first!r}"
    return None


def parser_fault(command: Command) -> str | None:
    """What the command's own parser says, where it looks at nothing but the words and a configuration of ours."""
    rest = list(command.words[2:])
    if "--help" in rest:
        return None
    positional = rest.pop(0) if rest and not rest[0].startswith("-") else None
    try:
        if command.name in KINDS:
            if rest:
                parse_options(KINDS[command.name], positional, rest)
        elif command.name == "train" and not {"--resume", "--overwrite"} & set(rest) and is_ours(positional):
            load_config(positional, parse_overrides(rest))
    except TbaError as error:
        return str(error)
    return None


def is_ours(configuration: str | None) -> bool:
    return configuration is None or is_literal(configuration)
