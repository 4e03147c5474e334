"""What `make site` adds to MkDocs: pages from outside of docs/, and the navigation.

The navigation is that of docs/index.md, in its order: each bold line there is a section, each row
of the table below it a page. Links to the repository's own pages, such as README.md, lead to copies
of them in the site; a link to any other file outside of docs/ is an error. Pages on the inside,
`docs.generate.INTERNAL`, are made for the site alone.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # MkDocs loads this file alone

from docs.generate import INTERNAL

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
"""Files outside of docs/ that are part of the site; those in Markdown as pages."""

_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
_SECTION = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
_ROW = re.compile(r"^\| \[(.+?)\]\(([\w./-]+\.md)\)", re.MULTILINE)


def navigation(index: str) -> list[dict[str, Any]]:
    """Return the navigation that the text of docs/index.md has."""
    _, *parts = _SECTION.split(index)
    sections = [
        {title: [{name: path} for name, path in _ROW.findall(rows)]}
        for title, rows in zip(parts[::2], parts[1::2], strict=True)
    ]
    project = [{Path(name).stem.capitalize(): in_site(name)} for name in PAGES if ".md" in name]
    internals = {"Internals": [{title: path} for path, (title, _) in INTERNAL.items()]}
    return [{"Home": "index.md"}, *sections, internals, {"Project": project}]


def in_site(name: str) -> str:
    """Return where a file of `PAGES` lies in the site."""
    return f"project/{name.lower()}" if name.endswith(".md") else f"project/{name}"


def moved_links(text: str, source: str, page: str) -> str:
    """Return ``text`` with the links of a file of the repository as those of a page of the site.

    ``source`` is the file's path in the repository, ``page`` the page's in the site.
    """

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        target = in_site(target) if target in PAGES else target.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page) or ".")

    return _LINK.sub(moved, text)


# -- called by MkDocs ----------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config.nav = navigation((ROOT / "docs" / "index.md").read_text())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files from outside of docs/, and the pages that only the site has."""
    from mkdocs.structure.files import File

    for name in PAGES:
        files.append(File.generated(config, in_site(name), content=(ROOT / name).read_text()))
    for path, (_, page) in INTERNAL.items():
        files.append(File.generated(config, path, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mend the links of a page."""
    path = page.file.src_uri
    sources = {in_site(name): name for name in PAGES}
    return moved_links(markdown, sources.get(path, f"docs/{path}"), path)
