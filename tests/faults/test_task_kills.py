"""A short run of the campaign against tasks, and that it notices what is wrong."""

from __future__ import annotations

import pytest

from campaigns.task_kills.run import PROGRAM, kill_tasks

pytestmark = pytest.mark.ci


def test_no_task_is_lost_or_run_twice_unannounced() -> None:
    found = kill_tasks(kills=15, tasks=20, seed=2)
    assert found["wrong"] == [], found


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ('echo begin >> "$0"; ' + PROGRAM, "began 2 times, and 1 attempts were told"),
        ('echo begin >> "$0"', "is done and has not reached its end"),
    ],
)
def test_it_notices_what_is_wrong(program: str, problem: str) -> None:
    found = kill_tasks(kills=0, tasks=1, seed=3, program=program)
    assert [problem in one for one in found["wrong"]] == [True]
