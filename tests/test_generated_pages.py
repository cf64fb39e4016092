"""What programs write into the documentation: the figure, the tables, the pages of commands and of Python."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from command_line_page import command_line_page
from memory_table import HEAD, memory_table
from names_table import names_table
from python_api_page import python_api_page
from staleness_figure import SYNC_PERIOD, asynchronous, figure, synchronous

import tba
from tba.cli import COMMANDS
from tba.config.other_names import OTHER_NAMES, WITHOUT_EQUAL


def test_ages_in_the_figure_follow_from_its_versions() -> None:
    """Of two syncs in a row, the first brings the weights that write what is trained on after the second."""
    steps = [phase for phase in asynchronous().trainer if phase.colour is not None]
    assert [phase.label for phase in steps] == [f"step {n}" for n in range(1, len(steps) + 1)]
    for updates, phase in enumerate(steps):
        version = max(0, updates // SYNC_PERIOD - 1) * SYNC_PERIOD
        assert (phase.colour, phase.note) == (version // SYNC_PERIOD, f"age {updates - version}")
    assert {phase.note for phase in synchronous().trainer} == {"", "age 0"}


def test_the_figure_is_a_picture_that_stands_alone() -> None:
    root = ElementTree.fromstring(figure())
    assert root.tag.endswith("svg")
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x + wide <= width
        assert y + high <= height


def test_larger_models_and_more_trained_weights_take_more_memory() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in memory_table().splitlines() if "|" in line][2:]
    together = HEAD.index("together")
    whole, adapters = (
        [float(row[together]) for row in rows if row[1].startswith(kind)] for kind in ("all", "adapters")
    )
    assert len(whole) == len(adapters) >= 4
    assert whole == sorted(whole)
    assert all(few < many for few, many in zip(adapters, whole, strict=True))
    assert all(float(row[together + 1]) < float(row[together]) for row in rows), "a smaller pass takes less"


def test_every_name_of_another_tool_is_in_the_table() -> None:
    table = names_table()
    names = {name for names in OTHER_NAMES.values() for name in names} | set(WITHOUT_EQUAL)
    assert {name for name in names if f"`{name}`" not in table} == set()


def test_every_command_has_a_section() -> None:
    assert set(COMMANDS) == set(re.findall(r"^## tba ([\w-]+)$", command_line_page(), re.MULTILINE))


def test_everything_that_the_package_offers_is_explained() -> None:
    page = python_api_page()
    assert {name for name in tba.__all__ if f"# tba.{name}\n" not in page} == set()
    for name in ("log_extra", "log_metric", "warm_up_rewards", "on_step", "on_evaluation", "global_step"):
        assert name in page
