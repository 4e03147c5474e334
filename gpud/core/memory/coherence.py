"""Coherence of arrays on a device with its own memory: which the session's file holds as well.

Problem: such a device's memory is lost with its host. An array may be restored on the next host
only with the values that it had, and no job may compute on other values unnoticed.

Approach: every copy of an array between file and device, and every start and end of a job, is
reported here. A job may access any array of its session on its device at any time from its start to
its end, so each start and each end begins a new *epoch*: what was copied before is no longer known
to equal the device's copy. When the host is lost, arrays that the file is known to hold are kept;
the others are *lost* until the session writes or frees them.

Terms:
    range: the part of an array that was copied, (offset, bytes) from its first byte.
    good: the file holds the array as the device has it, or will have it once a write has arrived.
    lost: no copy of its values exists.

Properties:
    kept_is_right: what is kept at a host loss was copied after the last job that could have written
        it had ended, or while the only jobs that could write it were still running: those fail.
        Launches in a lane have ended unnoticed: of a session with an open one, nothing is kept;
        nor is an array that the session has mapped, whose own kernels nobody sees;
    lost_stays: a lost array stays lost until all of it is written, or it is freed;
    told: `lost_arrays` returns a `LostArrays` for a job that could use a lost array, and None for
        one that was submitted after the array was freed;
    atomic: a call that raises has changed nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from gpud.core.memory.allocator import whole_pages
from gpud.errors import InvalidArgument, UnknownName
from gpud.units import SessionId

__all__ = ["ArrayExtent", "CoherenceTracker", "LostArrays"]

_NEVER = -1


class ArrayExtent(NamedTuple):
    """An array to be restored on a new host: ``size`` bytes at an address, in whole pages.

    ``from_file``: the file holds its values; otherwise it is all zeroes, or lost. ``shrinks``: it
    will be made smaller.
    """

    address: int
    size: int
    from_file: bool
    shrinks: bool = False


class LostArrays(NamedTuple):
    """The lost arrays that prevent a job from running.

    Attributes:
        arrays: addresses of those that the session has not freed.
        freed: how many more the session has freed, which wait for older jobs to end.
        reason: why they are lost, as a predicate of "the values".
    """

    arrays: tuple[int, ...]
    freed: int
    reason: str


class _Array:
    """The state of one array.

    Attributes:
        bytes: its requested size.
        blank: neither the session nor a copy from the device has written it in the file.
        good_at: the session's epoch when the file was last known to hold it.
        exported: the session has mapped it, and may write it at any time: the file is never known
            to hold it.
        lost: why its values are lost; None if they are not.
        shrinks: it will be made smaller.
        last_job: the last job that may use it, once it is freed; None before.
    """

    __slots__ = ("blank", "bytes", "exported", "good_at", "last_job", "lost", "shrinks")

    def __init__(self, size: int, epoch: int, *, shrinks: bool) -> None:
        self.bytes = size
        self.blank = True
        self.good_at = epoch
        self.exported = False
        self.shrinks = shrinks
        self.lost: str | None = None
        self.last_job: int | None = None


class _SessionArrays:
    """The arrays of one session, and its epoch."""

    def __init__(self) -> None:
        self.arrays: dict[int, _Array] = {}
        self.epoch = 0
        self.running = self.lanes = 0
        self.lost: dict[int, None] = {}


class CoherenceTracker:
    """Tracks the arrays of one device, by session."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, _SessionArrays] = {}

    # -- arrays

    def allocated(
        self, session: SessionId, address: int, size: int, *, shrinks: bool = False
    ) -> None:
        """Add a new array of zeroes; ``shrinks``: it will be made smaller."""
        state = self._sessions.setdefault(session, _SessionArrays())
        assert address not in state.arrays, "an array lies where another waits to be freed"
        state.arrays[address] = _Array(size, state.epoch, shrinks=shrinks)

    def freed(self, session: SessionId, address: int, last_job: int) -> None:
        """Mark an array as freed by its session; jobs up to ``last_job`` may still use it."""
        self._array(session, address).last_job = last_job

    def removed(self, session: SessionId, address: int) -> None:
        """Remove a freed array, which no job can use any more."""
        state = self._sessions[session]
        del state.arrays[address]
        state.lost.pop(address, None)

    def shrunk(self, session: SessionId, address: int, size: int) -> None:
        """Make an array smaller at its place."""
        array = self._sessions[session].arrays[address]
        array.bytes, array.shrinks = size, False

    def closed(self, session: SessionId) -> None:
        """Remove a closed session with all its arrays."""
        self._sessions.pop(session, None)

    def arrays(self, session: SessionId) -> list[ArrayExtent]:
        """Return the arrays to restore on a new host, in the order of their allocation."""
        state = self._sessions.get(session)
        return [] if state is None else [_held(at, one) for at, one in state.arrays.items()]

    def array(self, session: SessionId, address: int) -> ArrayExtent | None:
        """Return one array as `arrays` does; None if it does not exist any more."""
        state = self._sessions.get(session)
        one = None if state is None else state.arrays.get(address)
        return None if one is None else _held(address, one)

    # -- jobs

    def job_started(self, session: SessionId, *, lane: bool = False) -> None:
        """Record that a job of the session was started; ``lane``: launches in it end before it."""
        state = self._sessions.setdefault(session, _SessionArrays())
        state.epoch += 1
        state.running += 1
        state.lanes += lane

    def job_ended(self, session: SessionId, *, lane: bool = False) -> None:
        """Record that a job of the session has ended."""
        state = self._sessions[session]
        state.epoch += 1
        state.running -= 1
        state.lanes -= lane

    def lost_arrays(self, session: SessionId, number: int) -> LostArrays | None:
        """Return the lost arrays that job ``number`` could use; None if it may run."""
        state = self._sessions.get(session)
        if state is None or not state.lost:
            return None
        lost = {address: state.arrays[address] for address in state.lost}
        usable = [
            (address, one)
            for address, one in lost.items()
            if one.last_job is None or number <= one.last_job
        ]
        if not usable:
            return None
        present = tuple(address for address, one in usable if one.last_job is None)
        return LostArrays(present, len(usable) - len(present), usable[0][1].lost or "")

    # -- copies

    def check(self, session: SessionId, address: int, offset: int, size: int) -> None:
        """Check that a range lies in an array of the session.

        Raises:
            UnknownName: there is no such array.
            InvalidArgument: the range is empty or not inside the array.
        """
        array = self._array(session, address)
        if size < 1 or offset < 0 or offset + size > array.bytes:
            raise InvalidArgument(
                f"bytes {offset} to {offset + size} are no part of the array at {address:#x}, "
                f"which has {array.bytes}"
            )

    def written(self, session: SessionId, address: int, offset: int, size: int) -> None:
        """Record that the session has written a range to the file, to be copied to the device.

        Raises:
            UnknownName, InvalidArgument: as `check`.
        """
        self.check(session, address, offset, size)
        state = self._sessions[session]
        array = state.arrays[address]
        array.blank = False
        if size == array.bytes:
            array.good_at = state.epoch
            array.lost = None
            state.lost.pop(address, None)

    def in_file(self, session: SessionId, address: int) -> bool:
        """Whether the file holds an array's present values, and no running job can change them."""
        state = self._sessions[session]
        array = state.arrays[address]
        return not (state.running or array.exported) and array.good_at == state.epoch

    def exported(self, session: SessionId, address: int) -> int:
        """Record that the session maps an array; return its size in bytes.

        Raises:
            UnknownName: there is no such array.
        """
        array = self._array(session, address)
        array.exported = True
        return array.bytes

    def begin_read(self, session: SessionId, address: int) -> int:
        """Record that a range is about to be copied to the file; return `end_read`'s epoch."""
        state = self._sessions[session]
        state.arrays[address].blank = False
        return state.epoch

    def end_read(
        self, session: SessionId, address: int, offset: int, size: int, epoch: int
    ) -> None:
        """Record that a range was copied to the file; ``epoch`` is what `begin_read` returned."""
        state = self._sessions.get(session)
        array = None if state is None else state.arrays.get(address)
        if state is None or array is None or array.lost is not None:
            return
        if size == array.bytes and epoch == state.epoch:
            array.good_at = epoch

    def loss_reason(self, session: SessionId, address: int) -> str | None:
        """Return why an array's values are lost, as a predicate of "its values"; None if not."""
        return self._array(session, address).lost

    def mark_lost(self, session: SessionId, address: int, reason: str) -> None:
        """Mark an array as lost, for ``reason``."""
        state = self._sessions.get(session)
        array = None if state is None else state.arrays.get(address)
        if state is not None and array is not None:
            array.lost = reason
            array.good_at = _NEVER
            state.lost[address] = None

    def host_lost(self, reason: str) -> list[tuple[SessionId, int, int]]:
        """Record that the host was lost with the contents of its device's memory.

        Args:
            reason: as for `mark_lost`.

        Returns:
            (session, arrays, bytes) newly lost, for each session that has lost any.
        """
        losses = []
        for session, state in self._sessions.items():
            lanes, state.running, state.lanes = state.lanes, 0, 0
            going = [
                address
                for address, one in state.arrays.items()
                if one.lost is None and (lanes or one.exported or one.good_at != state.epoch)
            ]
            for address in going:
                self.mark_lost(session, address, reason)
            if going:
                losses.append((session, len(going), sum(state.arrays[at].bytes for at in going)))
        return losses

    def _array(self, session: SessionId, address: int) -> _Array:
        state = self._sessions.get(session)
        array = None if state is None else state.arrays.get(address)
        if array is None or array.last_job is not None:
            raise UnknownName(f"there is no array at {address:#x}; was it freed already?")
        return array


def _held(address: int, one: _Array) -> ArrayExtent:
    from_file = one.lost is None and not one.blank
    return ArrayExtent(address, whole_pages(one.bytes), from_file, one.shrinks)
