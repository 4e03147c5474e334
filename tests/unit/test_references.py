"""What pages, comments and docstrings refer to is there: links, files, modules and their names."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path, PurePosixPath

import pytest

from docs.generate import INTERNAL
from docs.site_hooks import PAGES, in_site, moved_links, navigation

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
# A file is named by its path, or by the end of that. Those with a pattern or a placeholder are not.
FILE = re.compile(
    r"(?<![\w/*<>{}~$-])(?:\.\./)*((?:[\w-][\w.-]*/)*[\w-]+\.(?:py|md|pml))(?![\w*<>{}/]|\.\w)"
)
FOLDER = re.compile(
    r"(?<![\w./*<>{}~$-])((?:gpud|client|tests|campaigns|bench|docs|contrib)/(?:[\w-]+/)*)(?![\w*<>{}])"
)
MODULE = re.compile(r"`((?:gpud|gpud_client|tests|campaigns|bench|docs)(?:\.\w+){2,})`")
NOWHERE = re.compile(r"\bDESIGN\b|\bdesign (?:page|document)\b|\bdesign, sections?\b")
# "`name` in `file`", "`name` of `file`"
NAMED = re.compile(r"`([\w.]+)(?:\(\))?`,?\s+(?:in|of)\s+(?:the\s+)?`((?:[\w-]+/)*[\w-]+\.py)`")
DECISION = re.compile(r"decisions\.md,\s+\"([^\"]+)\"")
USERS_OWN = {"my_program.py", "fit.py", "t.py", "train.py", "evaluate.py", "sweep.py"}


def repository_files() -> frozenset[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return frozenset(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


FILES = repository_files()
TAILS = {
    "/".join(PurePosixPath(name).parts[n:]) for name in FILES for n in range(name.count("/") + 1)
}
FOLDERS = {f"{folder}/" for name in FILES for folder in PurePosixPath(name).parents}
DOCUMENTS = sorted(name for name in FILES if name.endswith(".md"))
TEXTS = sorted(
    name for name in FILES
    if name.endswith((".py", ".md", ".toml", "Makefile")) and not name.startswith("bench/results/")
)  # fmt: skip


def prose(name: str, text: str) -> str:
    """What a person reads: all of a page, the comments and docstrings of a program.

    But for what programs printed, on a page that was recorded: it tells of files elsewhere.
    """
    if not name.endswith(".py"):
        recorded = "<!-- Written by docs/record_day.py" in text
        return re.sub(r"```console\n.*?```", "", text, flags=re.DOTALL) if recorded else text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    parts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.append(str(node.value.value))
    return "\n".join(parts)


DECISIONS = HEADING.findall((ROOT / "docs/explanation/decisions.md").read_text())


def names_nothing(text: str) -> list[str]:
    """The references of a text that lead nowhere."""
    wrong = [path for path in FILE.findall(text) if path not in TAILS | USERS_OWN]
    wrong += [path for path in FOLDER.findall(text) if path not in FOLDERS]
    wrong += [name for name in MODULE.findall(text) if not is_there(name)]

    wrong += [name for name in DECISION.findall(text) if " ".join(name.split()) not in DECISIONS]
    wrong += [f"{name} in {path}" for name, path in NAMED.findall(text) if not has(path, name)]
    return wrong + NOWHERE.findall(text)


def has(path: str, name: str) -> bool:
    """Whether a file whose path ends so has the name, or the last part of it."""
    word = re.compile(rf"\b{name.rpartition('.')[2]}\b")
    files = [ROOT / one for one in FILES if f"/{one}".endswith(f"/{path}")]
    return any(word.search(file.read_text()) for file in files)


def is_there(name: str) -> bool:
    """Whether a dotted name is a package, a module, or begins with one that has the next name."""
    parts = name.split(".")
    root = "client/" if parts[0] == "gpud_client" else ""
    for end in range(len(parts), 0, -1):
        path = root + "/".join(parts[:end])
        for module in (f"{path}.py", f"{path}/__init__.py"):
            if module in FILES:
                source = (ROOT / module).read_text()
                return end == len(parts) or bool(re.search(rf"\b{parts[end]}\b", source))
        if end == len(parts) and f"{path}/" in FOLDERS:
            return True
    return False


@pytest.mark.parametrize("part", ["gpud", "client", "tests", "campaigns", "bench", "docs", ""])
def test_what_is_cited_is_there(part: str) -> None:
    wrong = {}
    for name in TEXTS:
        if name.startswith(f"{part}/") if part else "/" not in name:
            text = (ROOT / name).read_text()
            # All of a file has what its prose has, and to part them takes most of the time.
            wrong[name] = names_nothing(text) and names_nothing(prose(name, text))
    assert len(wrong) > 1
    assert {name: cited for name, cited in wrong.items() if cited} == {}


@pytest.mark.parametrize(
    "text",
    ["see docs/nowhere.md", "`core/nothing.py`", "in gpud/nothing/ there", "claim" + ".pml",
     "`gpud.core.nothing.at_all`", "`NotThere` of `gpud/units.py`", "`gpud.units.NotThere`",
     "Source: des" + "ign, section 4.2.",
     'docs/explanation/decisions.md, "Nothing of this name"'],
)  # fmt: skip
def test_a_planted_reference_to_nothing_is_seen(text: str) -> None:
    assert names_nothing(text) != []


def test_references_that_lead_somewhere_are_accepted() -> None:
    text = "gpud/units.py, `core/job.py`, gpud/core/, `gpud.units`, `gpud.core.job.JobRecord`"
    assert names_nothing(text) == []


STOP = re.compile(r"^\| `([\w/.]+\.py)` \| (`.+?`) \|", re.MULTILINE)
"""A row of the code map in CONTRIBUTING.md: a file, and what is defined there."""


def wrong_stops(text: str) -> list[str]:
    """What the code map names and its file does not define."""
    wrong = []
    for path, names in STOP.findall(text):
        source = (ROOT / path).read_text() if path in FILES else ""
        for name in re.findall(r"`([\w.]+)`", names):
            cls, _, member = name.rpartition(".")
            wanted = [rf"^ *(?:async )?(?:def|class) {member}\b"] + [rf"^class {cls}\b"] * bool(cls)
            if not all(re.search(pattern, source, re.MULTILINE) for pattern in wanted):
                wrong.append(f"{path}: {name}")
    return wrong


def test_the_code_map_names_what_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(STOP.findall(text)) > 30
    assert wrong_stops(text) == []


def test_a_planted_wrong_stop_of_the_map_is_seen() -> None:
    row = "| `gpud/core/scheduler.py` | `Scheduler.handle`, `Scheduler.nothing` | |"
    assert wrong_stops(row) == ["gpud/core/scheduler.py: Scheduler.nothing"]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts and MkDocs make them."""
    headings = HEADING.findall(CODE_BLOCK.sub("", text))
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def broken_links(name: str, text: str) -> list[str]:
    broken = []
    for target, anchor in LINK.findall(CODE_BLOCK.sub("", text)):
        if "://" in target:
            continue
        path = (ROOT / name).parent / target
        page = path.read_text() if target and anchor and path.exists() else text
        if not path.exists() or (anchor and anchor not in anchors(page)):
            broken.append(f"{target}#{anchor}")
    return broken


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(name, (ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", INTERNAL)
def test_links_of_pages_that_only_the_site_has_lead_somewhere(name: str) -> None:
    _, page = INTERNAL[name]
    assert broken_links(f"docs/{name}", page()) == []


def test_a_planted_broken_link_is_seen() -> None:
    text = (
        "[a](daemon.md) [b](nowhere.md) [c](capsm.md#the-unit) [d](capsm.md#nothing) [e](#here)\n"
    )
    expected = ["nowhere.md#", "capsm.md#nothing"]
    assert broken_links("docs/explanation/forms.md", f"# Here\n{text}") == expected


# -- the site ------------------------------------------------------------------------------------


def test_the_navigation_has_every_page_once() -> None:
    sections = navigation((ROOT / "docs/index.md").read_text())
    pages = [path for section in sections for rows in section.values() if isinstance(rows, list)
             for row in rows for path in row.values()]  # fmt: skip
    wanted = [name.removeprefix("docs/") for name in DOCUMENTS if name.startswith("docs/")]
    wanted += [in_site(name) for name in PAGES if name.endswith(".md")]
    wanted += INTERNAL
    assert sorted([*pages, "index.md"]) == sorted(wanted)


@pytest.mark.parametrize(
    ("text", "source", "page", "moved"),
    [
        ("[a](../CHANGELOG.md#new)", "docs/index.md", "index.md", "[a](project/changelog.md#new)"),
        ("[a](docs/howto/x.md)", "README.md", "project/readme.md", "[a](../howto/x.md)"),
        ("![a](docs/images/a.png)", "README.md", "project/readme.md", "![a](../images/a.png)"),
        ("[a](capsm.md#b)", "docs/explanation/x.md", "explanation/x.md", "[a](capsm.md#b)"),
        ("[a](https://x.y/z.md)", "README.md", "project/readme.md", "[a](https://x.y/z.md)"),
        ("[a](#b)", "README.md", "project/readme.md", "[a](#b)"),
        ("[a](../gpud/units.py)", "docs/index.md", "index.md", "[a](gpud/units.py)"),
    ],
)
def test_links_between_pages_of_the_repository_are_those_of_the_site(
    text: str, source: str, page: str, moved: str
) -> None:
    assert moved_links(text, source, page) == moved
