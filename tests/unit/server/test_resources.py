from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpud.device.host import messages as hm
from gpud.server.hosts.resources import ResourceRegistry
from gpud.server.ipc.child_process import OnReply

SHAPE = (0, (32, 1, 1), 0, False)


class Host:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, OnReply]] = []
        self.sent: list[Any] = []
        self.registry = ResourceRegistry(
            self._request, self.sent.append, lambda session: (0, 4096, 3)
        )

    def _request(
        self, make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
    ) -> None:
        self.asked.append((make(len(self.asked) + 1), on_reply))

    def answer(self) -> Any:
        """Answer the oldest question; which it was."""
        message, on_reply = self.asked.pop(0)
        on_reply(8, None)
        return message


def module(number: int, session: int) -> Any:
    info = SimpleNamespace(entry_for=lambda block, killable: "k")
    program = SimpleNamespace(ptx="", block=None, kernel=lambda _: SimpleNamespace(info=info))
    return SimpleNamespace(number=number, session=session, program=program, variables_at=None)


@pytest.mark.parametrize("answers_before", range(4))
def test_nothing_is_kept_of_sessions_that_have_gone(answers_before: int) -> None:
    """However far the host had come with what they had asked for."""
    host = Host()
    for number in range(1, 20):
        replies: list[Any] = []
        one = module(number, number)
        host.registry.measure(one, SHAPE, lambda value, error: replies.append(value or error))  # noqa: B023
        for _ in range(answers_before):
            host.answer()
        host.registry.unload(number)
        host.registry.close_session(number)
        while host.asked:
            host.answer()
        assert len(replies) == 1
    kept = host.registry
    assert not any((kept._arenas, kept._arrays, kept._modules, kept._measured))
    assert sum(type(message) is hm.CloseArena for message in host.sent) == 19


def test_what_a_module_has_had_measured_is_known_until_it_is_unloaded() -> None:
    host = Host()
    one, sequence = module(1, 1), SimpleNamespace(ready=None, needs=[])
    sequence.needs.append((one, SHAPE))
    host.registry.measure(one, SHAPE, lambda value, error: None)
    assert not host.registry.is_ready(sequence, 1)  # type: ignore[arg-type]
    for _ in range(3):
        host.answer()
    assert host.registry.is_ready(sequence, 1)  # type: ignore[arg-type]
    host.registry.unload(1)
    sequence.ready = None
    assert not host.registry.is_ready(sequence, 1)  # type: ignore[arg-type]
