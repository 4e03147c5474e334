"""Arrays on a device with memory of its own: what of them the sessions' files hold as well.

Problem: such a device's memory is lost with its host. An array may be given to the next host only
with the values that it had, and nobody may compute on others without being told.

Approach: whoever copies an array between file and device says so here, and so does whoever starts
jobs and hears of their ends. A job may reach any array of its session on its device at any moment
from its start to its end, so each start and each end begins a new *epoch*: what was copied before
is no longer known to be what the device has. When the host is lost, arrays that the file is known
to hold go on; the others are *lost* until the session writes or frees them.

Terms:
    range: what of an array was copied, (offset, bytes) from its first byte.
    good: the file holds the array as the device has it, or as it is about to have it.
    lost: its values are nowhere.

Properties:
    kept_is_right: what is kept at a loss was copied after the last job that could have written it
        had ended, or while the only jobs that could write it were running still: those fail;
    lost_stays: an array that is lost is so until all of it is written, or it is freed;
    told: a job that could use a lost array has a `LostArrays`; one that was submitted after the
        array was freed has none;
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
    """An array for a new host: ``size`` bytes at an address, in whole pages.

    ``from_file``: the file has its values; else it is all zeroes, or lost.
    """

    address: int
    size: int
    from_file: bool


class LostArrays(NamedTuple):
    """What keeps a job from running: arrays whose values are lost, and how that came.

    Attributes:
        arrays: addresses of those that the session still has.
        freed: how many more wait to be freed until older jobs have ended.
        reason: in words that follow "the values".
    """

    arrays: tuple[int, ...]
    freed: int
    reason: str


class _Array:
    """One array.

    Attributes:
        bytes: as they were asked for.
        blank: it is all zeroes as far as the session and the file are concerned.
        good_at: the session's epoch when the file was known to hold it.
        lost: why its values are nowhere; None: they are somewhere.
        last_job: that may use it, once it is freed; None before.
    """

    __slots__ = ("blank", "bytes", "good_at", "last_job", "lost")

    def __init__(self, size: int, epoch: int) -> None:
        self.bytes = size
        self.blank = True
        self.good_at = epoch
        self.lost: str | None = None
        self.last_job: int | None = None


class _SessionArrays:
    """A session's arrays."""

    def __init__(self) -> None:
        self.arrays: dict[int, _Array] = {}
        self.epoch = 0
        self.running = 0
        self.lost: dict[int, None] = {}


class CoherenceTracker:
    """The arrays of one device."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, _SessionArrays] = {}

    # -- arrays

    def allocated(self, session: SessionId, address: int, size: int) -> None:
        """There is a new array of zeroes."""
        state = self._sessions.setdefault(session, _SessionArrays())
        assert address not in state.arrays, "an array lies where another waits to be freed"
        state.arrays[address] = _Array(size, state.epoch)

    def freed(self, session: SessionId, address: int, last_job: int) -> None:
        """The session has no array there any more; jobs up to ``last_job`` may use it."""
        self._array(session, address).last_job = last_job

    def removed(self, session: SessionId, address: int) -> None:
        """No job can use an array any more."""
        state = self._sessions[session]
        del state.arrays[address]
        state.lost.pop(address, None)

    def closed(self, session: SessionId) -> None:
        """A session has gone with all its arrays."""
        self._sessions.pop(session, None)

    def arrays(self, session: SessionId) -> list[ArrayExtent]:
        """What a new host needs memory for, in the order in which it was allocated."""
        state = self._sessions.get(session)
        return [] if state is None else [_held(at, one) for at, one in state.arrays.items()]

    def array(self, session: SessionId, address: int) -> ArrayExtent | None:
        """The same of one array; None: it is not there any more."""
        state = self._sessions.get(session)
        one = None if state is None else state.arrays.get(address)
        return None if one is None else _held(address, one)

    # -- jobs

    def job_started(self, session: SessionId) -> None:
        """A host was told to start a job."""
        state = self._sessions.setdefault(session, _SessionArrays())
        state.epoch += 1
        state.running += 1

    def job_ended(self, session: SessionId) -> None:
        """A host says that a job has ended."""
        state = self._sessions[session]
        state.epoch += 1
        state.running -= 1

    def lost_arrays(self, session: SessionId, number: int) -> LostArrays | None:
        """Why job ``number`` of a session must not run; None: nothing speaks against it."""
        state = self._sessions.get(session)
        if state is None or not state.lost:
            return None
        found = {address: state.arrays[address] for address in state.lost}
        usable = [
            (address, one)
            for address, one in found.items()
            if one.last_job is None or number <= one.last_job
        ]
        if not usable:
            return None
        present = tuple(address for address, one in usable if one.last_job is None)
        return LostArrays(present, len(usable) - len(present), usable[0][1].lost or "")

    # -- copies

    def check(self, session: SessionId, address: int, offset: int, size: int) -> None:
        """Returns if this is a part of an array of the session's.

        Raises:
            UnknownName: there is no such array.
            InvalidArgument: the part is not all in it, or empty.
        """
        array = self._array(session, address)
        if size < 1 or offset < 0 or offset + size > array.bytes:
            raise InvalidArgument(
                f"bytes {offset} to {offset + size} are no part of the array at {address:#x}, "
                f"which has {array.bytes}"
            )

    def written(self, session: SessionId, address: int, offset: int, size: int) -> None:
        """The session has written a part of an array into the file; it will be on the device.

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
        """Whether the file holds an array, and no job runs that could change it."""
        state = self._sessions[session]
        return not state.running and state.arrays[address].good_at == state.epoch

    def begin_read(self, session: SessionId, address: int) -> int:
        """A part of an array will be copied into the file; returns what to give `end_read`."""
        state = self._sessions[session]
        state.arrays[address].blank = False
        return state.epoch

    def end_read(
        self, session: SessionId, address: int, offset: int, size: int, epoch: int
    ) -> None:
        """A part of an array was copied into the file; ``epoch`` is what `begin_read` gave."""
        state = self._sessions.get(session)
        array = None if state is None else state.arrays.get(address)
        if state is None or array is None or array.lost is not None:
            return
        if size == array.bytes and epoch == state.epoch:
            array.good_at = epoch

    def loss_reason(self, session: SessionId, address: int) -> str | None:
        """Why an array's values are nowhere, in words that follow "its values"; None: they are."""
        return self._array(session, address).lost

    def mark_lost(self, session: SessionId, address: int, reason: str) -> None:
        """The values of an array are nowhere."""
        state = self._sessions.get(session)
        array = None if state is None else state.arrays.get(address)
        if state is not None and array is not None:
            array.lost = reason
            array.good_at = _NEVER
            state.lost[address] = None

    def host_lost(self, reason: str) -> list[tuple[SessionId, int, int]]:
        """The host has gone with what its device had.

        Args:
            reason: as for `mark_lost`.

        Returns:
            Session, arrays and bytes of what is lost by that, for each that has lost any.
        """
        found = []
        for session, state in self._sessions.items():
            state.running = 0
            going = [
                address
                for address, one in state.arrays.items()
                if one.lost is None and one.good_at != state.epoch
            ]
            for address in going:
                self.mark_lost(session, address, reason)
            if going:
                found.append((session, len(going), sum(state.arrays[at].bytes for at in going)))
        return found

    def _array(self, session: SessionId, address: int) -> _Array:
        state = self._sessions.get(session)
        array = None if state is None else state.arrays.get(address)
        if array is None or array.last_job is not None:
            raise UnknownName(f"there is no array at {address:#x}; was it freed already?")
        return array


def _held(address: int, one: _Array) -> ArrayExtent:
    return ArrayExtent(address, whole_pages(one.bytes), one.lost is None and not one.blank)
