"""Try again, then blame: when a case is tried again, when it is blamed, and what is kept."""

from __future__ import annotations

from gpud.errors import CompileError
from gpud.processes.culprits import MOST_KEPT, MOST_STARTS, MOST_TRIES, Culprits, Verdict


def test_bounded() -> None:
    culprits: Culprits[str] = Culprits()
    assert [culprits.ended("bad") for _ in range(MOST_TRIES)] == [
        *[Verdict.TRY_AGAIN] * (MOST_TRIES - 1),
        Verdict.BLAME,
    ]
    assert [culprits.ended(None) for _ in range(MOST_STARTS)] == [
        *[Verdict.TRY_AGAIN] * (MOST_STARTS - 1),
        Verdict.CANNOT_RUN,
    ]


def test_a_time_limit_is_exceeded_by_the_case_alone() -> None:
    culprits: Culprits[str] = Culprits()
    assert culprits.ended("slow", too_long=True) is Verdict.BLAME
    assert culprits.ended(None, too_long=True) is Verdict.CANNOT_RUN


def test_no_false_blame() -> None:
    culprits: Culprits[str] = Culprits()
    culprits.ended("unlucky")
    assert culprits.ended("other") is Verdict.TRY_AGAIN, "each case is counted by itself"
    culprits.answered("unlucky")
    assert culprits.ended("unlucky") is Verdict.TRY_AGAIN, "what was answered begins anew"
    for _ in range(3 * MOST_STARTS):
        assert culprits.ended(None) is Verdict.TRY_AGAIN, "in a row only"
        culprits.answered("works")


def test_not_again() -> None:
    culprits: Culprits[int] = Culprits()
    assert not culprits
    for case in range(MOST_KEPT + 1):
        culprits.refuse(case, CompileError(str(case)))
    assert culprits.refusal(0) is None, "the oldest is forgotten"
    assert str(culprits.refusal(1)) == "1"
    assert culprits


def test_small() -> None:
    culprits: Culprits[int] = Culprits()
    for case in range(2 * MOST_KEPT):
        culprits.ended(case)
    assert len(culprits._tries) == MOST_KEPT
