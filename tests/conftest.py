from __future__ import annotations

import os
import random
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tba.launch.processes import thread_environment

# Nothing in the tests may depend on a model hub; transformers reads this when it is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The tests' models are tiny: more threads only wait for each other. A run in this process sets the same.
os.environ.update(thread_environment(1))

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# A shell that puts the tests into the background lets them ignore Ctrl-C, and so would the commands that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", type=int, help="run files, and the tests of each, in an order made of this seed")
    parser.addoption("--rounding-seed", type=int, help="let torch round as some other processor, made of this seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--order-seed")
    if seed is None:
        return
    rng = random.Random(seed)
    # Tests of a file stay together, so that what they share is made once.
    places = {path: rng.random() for path in dict.fromkeys(item.path for item in items)}
    rng.shuffle(items)
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    seed = item.config.getoption("--rounding-seed")
    if seed is None:
        return (yield)
    from other_rounding import OtherRounding

    with OtherRounding(seed):
        return (yield)


@contextmanager
def _without_the_tests_name() -> Generator[None]:
    """pytest names the current test in an environment variable. Processes are forked only while the environment is the
    same (`launch/nursery.py`), and spawned ones would import torch again, for each test."""
    name = os.environ.pop("PYTEST_CURRENT_TEST", None)
    try:
        yield
    finally:
        if name is not None:
            os.environ["PYTEST_CURRENT_TEST"] = name


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    with _without_the_tests_name():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    with _without_the_tests_name():
        return (yield)
