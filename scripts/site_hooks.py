"""What the site needs beside mkdocs: pages from outside docs/, GitHub's habits of Markdown, and files for assistants.

- README.md is the landing page; some other pages of the repository's root are pages, too. Other files of the repository
  that pages link to are copied into the folder `repository` of the site.
- A list may follow a paragraph without an empty line, as on GitHub. `<!-- needs: … -->` above a command is shown.
- Beside each page lies its Markdown, and `llms.txt` lists all pages with what a reader can do after each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OUTSIDE = {"index.md": "README.md"} | {name: name for name in ("CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")}
"""Pages of the site that lie elsewhere in the repository."""
COPIES = "repository"
SUMMARY = "Asynchronous, off-policy reinforcement learning for language models with trajectory balance."
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_BEFORE_LIST = re.compile(r"^(?![-*] |\d+\. |[|#>\s])(.+)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
"""A line of a paragraph, with a list under it."""
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=from_root((ROOT / source).read_text("utf-8"))))
    texts = [*(file.content_string for file in files.documentation_pages())]
    for target in sorted({target for text in texts for target in copied(text)}):
        files.append(File.generated(config, f"{COPIES}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return as_on_github(linked(markdown))


def on_post_build(config: Any) -> None:
    site = Path(config.site_dir)
    lines = ["# tba", "", f"> {SUMMARY}", ""]
    for title, pages in sections(config.nav):
        lines += [f"## {title}", ""]
        for page in pages:
            text = linked(source_of(page))
            (site / page).write_text(text, "utf-8")
            heading, purpose = opening(text)
            lines.append(f"- [{heading}]({page}): {purpose}")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")


def sections(nav: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """The headings of the navigation with the pages under each."""
    for entry in nav:
        [(title, pages)] = entry.items()
        yield title, [pages] if isinstance(pages, str) else [page for one in pages for page in one.values()]


def source_of(page: str) -> str:
    if page in OUTSIDE:
        return from_root((ROOT / OUTSIDE[page]).read_text("utf-8"))
    return (ROOT / "docs" / page).read_text("utf-8")


def from_root(text: str) -> str:
    """A page of the repository's root, as if it lay in docs/."""
    return _LINK.sub(lambda link: link[1] + moved(link[2]) + (link[3] or "") + link[4], text)


def moved(target: str) -> str:
    if "://" in target or target in OUTSIDE:
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def linked(text: str) -> str:
    """Links that lead out of docs/ lead to pages of the site, or to copies in it."""
    return _LINK.sub(lambda link: link[1] + within_site(link[2]) + (link[3] or "") + link[4], text)


def within_site(target: str) -> str:
    if not target.startswith("../"):
        return target
    outside = target.removeprefix("../")
    return next((page for page, source in OUTSIDE.items() if source == outside), f"{COPIES}/{outside}")


def copied(text: str) -> Iterator[str]:
    """Files outside docs/ that a page links to, and that are no pages."""
    for link in _LINK.finditer(text):
        outside = link[2].removeprefix("../")
        if link[2].startswith("../") and outside not in OUTSIDE.values():
            yield outside


def as_on_github(text: str) -> str:
    """Outside code: an empty line before a list, and what a command needs as a line of its own."""
    parts = _FENCE.split(text)
    for place in range(0, len(parts), 2):
        plain = re.sub(r"<!-- needs: (.*?) -->", r'<p class="needs">Needs \1.</p>\n', parts[place])
        parts[place] = _BEFORE_LIST.sub(r"\1\n\n", plain)
    return "".join(parts)


def opening(text: str) -> tuple[str, str]:
    """The title of a page, and its first sentence: what a reader can do afterwards."""
    plain = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    heading = re.search(r"^# (.+)$", plain, re.MULTILINE)
    after = plain[heading.end() :] if heading else plain
    first = " ".join(next((part for part in after.split("\n\n") if part.strip()), "").split())
    sentence = re.match(r".*?[.:](?= |$)", first)
    return heading[1] if heading else "", re.sub(r"\]\([^)]*\)", "]", sentence[0] if sentence else first)
