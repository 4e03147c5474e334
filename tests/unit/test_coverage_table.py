"""The table of `make coverage` adds files up by package."""

from __future__ import annotations

from typing import Any

from bench.coverage_by_package import table


def file(statements: int, covered: int, branches: int, taken: int) -> dict[str, Any]:
    return {
        "summary": {
            "num_statements": statements, "covered_lines": covered,
            "num_branches": branches, "covered_branches": taken,
        }
    }  # fmt: skip


def test_packages_are_added_up() -> None:
    lines = table({
        "gpud/core/policies/a.py": file(10, 5, 4, 1),
        "gpud/core/b.py": file(10, 10, 0, 0),
        "gpud/device/cpu/c.py": file(8, 0, 0, 0),
        "gpud/device/d.py": file(1, 1, 0, 0),
    })  # fmt: skip
    assert lines[2:] == [
        "| gpud/core | 20 | 75.0 | 4 | 25.0 |",
        "| gpud/device | 1 | 100.0 | 0 |  |",
        "| gpud/device/cpu | 8 | 0.0 | 0 |  |",
        "| all | 29 | 55.2 | 4 | 25.0 |",
    ]
