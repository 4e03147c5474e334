"""What a session waits for: requests and jobs, and the operations that are made of such steps.

Terms:
    settled: a request that is answered or failed, or a job that has ended; the state is final.
    operation: a generator of steps; its return value is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from gpud.errors import GpudError
from gpud.wire.messages import Finished, LaneOpened, LaunchEnded

if TYPE_CHECKING:
    from gpud_client.devices import Device

__all__ = [
    "KeptJob",
    "Notification",
    "Operation",
    "PendingJob",
    "PendingJobs",
    "PendingLane",
    "Request",
    "Signal",
    "Step",
    "wake",
]

_PRUNE_AT = 64

T = TypeVar("T")


class Request:
    """A request and its answer.

    Args:
        build: makes the message, given the request's number.
        undo: called with the answer if the request was abandoned.

    Attributes:
        abandoned: whether the caller is no longer waiting for the answer.
        _settled: whether `value` or `error` is set; jobs have the same attribute.
        _waiting: called when it is settled, to wake what waits for it; jobs have it, too.
    """

    __slots__ = ("_settled", "_waiting", "abandoned", "build", "error", "undo", "value")

    def __init__(
        self, build: Callable[[int], Any], undo: Callable[[Any], None] | None = None
    ) -> None:
        self.build = build
        self.undo = undo
        self.value: Any = None
        self.error: BaseException | None = None
        self._settled = False
        self.abandoned = False
        self._waiting: list[Callable[[], object]] = []

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Set the answer or the error, unless it is settled."""
        if self._settled:
            return
        self.value, self.error = value, error
        self._settled = True
        if self.abandoned and self.undo is not None and error is None:
            self.undo(value)
        wake(self._waiting)

    def abandon(self) -> None:
        """Give up waiting for the answer; it is undone when it arrives, or now if it has."""
        self.abandoned = True
        if self._settled and self.undo is not None and self.error is None:
            self.undo(self.value)

    def answer(self) -> Any:
        """Return the answer, or raise the request's error."""
        if self.error is not None:
            raise self.error
        return self.value


class Signal:
    """Something that happens once, to be waited for like a request; see `Request`."""

    __slots__ = ("_settled", "_waiting")

    def __init__(self) -> None:
        self._settled = False
        self._waiting: list[Callable[[], object]] = []

    def set(self) -> None:
        """Wake what waits: it has happened."""
        self._settled = True
        wake(self._waiting)


class Notification(NamedTuple):
    """A message that has no answer."""

    message: Any


class KeptJob(NamedTuple):
    """What it takes to submit a job again to another daemon.

    Attributes:
        terms: the fields of `gpud.wire.messages.Submit` after its number.
        users: of what the job uses.
        memory: of the arrays that it uses, which must not be freed before it ends.
    """

    terms: tuple[Any, ...]
    users: Sequence[PendingJobs]
    memory: Sequence[object]


class PendingJob(Protocol):
    """What this package uses of a job; see `gpud_client.launch.job_base`.

    People hold jobs, so that attributes for the library are private, too: ``_ref``, the numbers of
    its session and its own, once it is submitted; ``_settled``, ``_settle`` and ``_lose``; what it
    runs, where, and in which stream; ``_asked``, whether anybody has asked how it ended; and in
    sessions that reconnect ``_begun``, whether it may have changed arrays, and ``_kept``.
    """

    _ref: tuple[int, int]
    _settled: bool
    _asked: bool
    _what: str
    _device: Device
    _stream: Any
    _users: Iterable[PendingJobs]
    _begun: bool
    _kept: KeptJob | None

    @property
    def id(self) -> str:
        """The job's id in logs and ``gpuctl``."""

    def _settle(self, message: Finished) -> None: ...

    def _lose(self, error: GpudError) -> None: ...


class PendingLane(Protocol):
    """What this package uses of a lane; see `gpud_client.launch.lane_base`."""

    device: Any
    _number: int

    def _map_ring(self, message: LaneOpened, descriptor: int) -> None: ...

    def _launch_ended(self, message: LaunchEnded) -> None: ...

    def _settle(self, message: Finished) -> None: ...

    def _lose(self, error: GpudError) -> None: ...

    def _latest(self) -> Any: ...

    def _latest_with(self, allocation: Any) -> Any: ...


class PendingJobs:
    """The jobs that use an array or module and may not have ended.

    Attributes:
        numbers: of these jobs, and of some that have ended.
        failure: that of the latest of these jobs that have failed; None: none has.
        most: how many, from which on those that have ended are dropped.
    """

    __slots__ = ("failure", "most", "numbers")

    def __init__(self) -> None:
        self.failure: Any = None  # `gpud_client.launch.streams.Failure`, which is above this
        self.numbers: list[int] = []
        self.most = _PRUNE_AT

    def prune(self, jobs: Mapping[int, PendingJob]) -> None:
        """Drop those that have ended, ``jobs`` being those that have not."""
        self.numbers = [number for number in self.numbers if number in jobs]
        self.most = max(_PRUNE_AT, 2 * len(self.numbers))

    def unended(self, jobs: Mapping[int, PendingJob]) -> list[PendingJob]:
        """Return the jobs that have not ended, ``jobs`` being all of these."""
        return [job for number in self.numbers if (job := jobs.get(number)) is not None]


Step = Request | Notification | Sequence[Any]
Operation = Generator[Step, Any, T]


def wake(waiting: list[Callable[[], object]]) -> None:
    """Wake what waits. Other threads may add to the list, and remove from it, meanwhile."""
    for wake_one in tuple(waiting):
        wake_one()
