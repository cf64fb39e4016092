"""The site of the documentation: it builds without a warning, needs no network, and has Markdown beside its pages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import site_hooks
from mkdocs.config import load_config

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


FETCHED = (
    r"""<(?:script|img|iframe)[^>]+src=["']?(https?:[^"' >]+)""",
    r"""<link[^>]+href=["']?(https?:[^"' >]+)""",
    r"""url\(["']?(https?:[^"')]+)""",
)


def loaded_from_elsewhere(text: str) -> list[str]:
    """What a browser would fetch from another host to show this."""
    return [address for pattern in FETCHED for address in re.findall(pattern, text)]


def test_what_is_loaded_from_elsewhere_is_found() -> None:
    """The guard of the guard."""
    text = """<script src="https://a/b.js"><img src="c.png"><link href="https://d/e.css"> url("https://f/g.woff2")"""
    assert loaded_from_elsewhere(text) == ["https://a/b.js", "https://d/e.css", "https://f/g.woff2"]


def test_reading_needs_no_network(site: Path) -> None:
    shown = [path for kind in ("html", "css", "svg") for path in site.rglob(f"*.{kind}")]
    assert len(shown) > 20
    found = {path.name: loaded_from_elsewhere(path.read_text("utf-8")) for path in shown}
    assert {name: addresses for name, addresses in found.items() if addresses} == {}
    assert "iframe-worker.js" in (site / "index.html").read_text("utf-8"), "the search works in files, too"


def test_assistants_get_markdown_and_a_list_of_it(site: Path) -> None:
    listed = re.findall(r"^- \[.+?\]\((.+?)\): (.+)$", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    pages = {path.with_suffix(".md").name for path in site.glob("*.html")} - {"404.md"}
    assert {page for page, _ in listed} == pages
    assert all((site / page).read_text("utf-8").count("\n") > 5 for page, _ in listed)
    assert {path.name for path in PAGES} < pages


def links_of(text: str) -> Iterator[str]:
    yield from (target for target in re.findall(r"\]\(([^)\s#]+)", text) if "://" not in target)


def test_links_of_the_markdown_lead_somewhere_in_the_site(site: Path) -> None:
    links = [(page.name, target) for page in site.glob("*.md") for target in links_of(page.read_text("utf-8"))]
    assert len(links) > 100
    assert [link for link in links if not (site / link[1]).exists()] == []


def test_pages_are_in_the_order_in_which_people_read() -> None:
    nav = load_config(str(ROOT / "mkdocs.yml")).nav
    order = [page for _, pages in site_hooks.sections(nav) for page in pages]
    wanted = "index install quickstart data-and-rewards tuning hardware coming-from metrics how-it-works checkpoints"
    pages = [f"{name}.md" for name in f"{wanted} python-api command-line configuration architecture faq".split()]
    assert [page for page in order if page in pages] == pages


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("**What to change.**\n- Lower it.\n- Or not.\n", "**What to change.**\n\n- Lower it.\n- Or not.\n"),
        ("In this order:\n1. One.\n", "In this order:\n\n1. One.\n"),
        ("- A list\n  goes on.\n- Next.\n", "- A list\n  goes on.\n- Next.\n"),
        ("```\na\n- b\n```\n", "```\na\n- b\n```\n"),
        (
            "<!-- needs: data, hours -->\n```sh\nls\n```\n",
            '<p class="needs">Needs data, hours.</p>\n\n```sh\nls\n```\n',
        ),
    ],
)
def test_markdown_reads_as_on_github(written: str, shown: str) -> None:
    assert site_hooks.as_on_github(written) == shown


def test_links_out_of_the_folder_lead_into_the_site() -> None:
    text = "[a](../CHANGELOG.md#x) [b](../examples/own_reward/train.py) [c](tuning.md#memory) [d](https://e.org/../f)"
    assert site_hooks.linked(text) == text.replace("../C", "C").replace("../examples", "repository/examples")
    assert list(site_hooks.copied(text)) == ["examples/own_reward/train.py"]
    assert site_hooks.from_root("[a](docs/tuning.md) [b](examples/x.py)") == "[a](tuning.md) [b](../examples/x.py)"
