"""Groups of replies: called back once, with the first error."""

from __future__ import annotations

import pytest

from gpud.errors import GpudError
from gpud.server.ipc.reply_group import ReplyGroup

FIRST, SECOND = GpudError("first"), GpudError("second")


@pytest.mark.parametrize("sealed_first", [False, True])
def test_once(sealed_first: bool) -> None:
    done: list[GpudError | None] = []
    group = ReplyGroup(done.append)
    replies = [group.add(), group.add()]
    if sealed_first:
        group.seal()
    for reply in replies:
        assert not done
        reply(8, None)
    if not sealed_first:
        assert not done
        group.seal()
    assert done == [None]


def test_a_group_without_replies() -> None:
    done: list[GpudError | None] = []
    ReplyGroup(done.append).seal()
    assert done == [None]


@pytest.mark.parametrize(("fail_fast", "early"), [(False, []), (True, [FIRST])])
def test_first_error(fail_fast: bool, early: list[GpudError | None]) -> None:
    done: list[GpudError | None] = []
    group = ReplyGroup(done.append, fail_fast=fail_fast)
    group.add()(None, FIRST)
    assert done == early
    group.add()(None, SECOND)
    group.add()(None, None)
    group.seal()
    assert done == [FIRST]
