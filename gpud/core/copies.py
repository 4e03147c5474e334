"""Arrays on a device with memory of its own: what of them the sessions' files hold as well.

Problem: such a device's memory is lost with its host. An array may be given to the next host only
with the values that it had, and nobody may compute on others without being told.

Approach: whoever copies an array between file and device says so here, and so does whoever starts
jobs and hears of their ends. A job may reach any array of its session on its device at any moment
from its start to its end, so each start and each end is a *move*: what was copied before is no
longer known to be what the device has. When the host is lost, arrays that the file is known to hold
go on; the others are *lost* until the session writes or frees them.

Terms:
    range: what of an array was copied, (offset, bytes) from its first byte.
    good: the file holds the array as the device has it, or as it is about to have it.
    lost: its values are nowhere.

Properties:
    kept_is_right: what is kept at a loss was copied after the last job that could have written it
        had ended, or while the only jobs that could write it were running still: those fail;
    lost_stays: an array that is lost is so until all of it is written, or it is freed;
    told: a job that could use a lost array has a `Lost`; one that was submitted after the array was
        freed has none;
    atomic: a call that raises has changed nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from gpud.core.space import whole_pages
from gpud.errors import InvalidArgument, UnknownName
from gpud.units import SessionId

__all__ = ["Copies", "Held", "Lost"]

_NEVER = -1


class Held(NamedTuple):
    """An array for a new host: ``size`` bytes at an address, in whole pages.

    ``from_file``: the file has its values; else it is all zeroes, or lost.
    """

    address: int
    size: int
    from_file: bool


class Lost(NamedTuple):
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
        good_at: the session's moves when the file was known to hold it.
        lost: why its values are nowhere; None: they are somewhere.
        last_job: that may use it, once it is freed; None before.
    """

    __slots__ = ("blank", "bytes", "good_at", "last_job", "lost")

    def __init__(self, size: int, moves: int) -> None:
        self.bytes = size
        self.blank = True
        self.good_at = moves
        self.lost: str | None = None
        self.last_job: int | None = None


class _Space:
    """A session's arrays."""

    def __init__(self) -> None:
        self.arrays: dict[int, _Array] = {}
        self.moves = 0
        self.running = 0
        self.lost: dict[int, None] = {}


class Copies:
    """The arrays of one device."""

    def __init__(self) -> None:
        self._spaces: dict[SessionId, _Space] = {}

    # -- arrays

    def allocated(self, session: SessionId, address: int, size: int) -> None:
        """There is a new array of zeroes."""
        space = self._spaces.setdefault(session, _Space())
        assert address not in space.arrays, "an array lies where another waits to be freed"
        space.arrays[address] = _Array(size, space.moves)

    def freed(self, session: SessionId, address: int, last_job: int) -> None:
        """The session has no array there any more; jobs up to ``last_job`` may use it."""
        self._array(session, address).last_job = last_job

    def gone(self, session: SessionId, address: int) -> None:
        """No job can use an array any more."""
        space = self._spaces[session]
        del space.arrays[address]
        space.lost.pop(address, None)

    def closed(self, session: SessionId) -> None:
        """A session has gone with all its arrays."""
        self._spaces.pop(session, None)

    def arrays(self, session: SessionId) -> list[Held]:
        """What a new host needs memory for, in the order in which it was allocated."""
        space = self._spaces.get(session)
        return [] if space is None else [_held(at, one) for at, one in space.arrays.items()]

    def array(self, session: SessionId, address: int) -> Held | None:
        """The same of one array; None: it is not there any more."""
        space = self._spaces.get(session)
        one = None if space is None else space.arrays.get(address)
        return None if one is None else _held(address, one)

    # -- jobs

    def began(self, session: SessionId) -> None:
        """A host was told to start a job."""
        space = self._spaces.setdefault(session, _Space())
        space.moves += 1
        space.running += 1

    def ended(self, session: SessionId) -> None:
        """A host says that a job has ended."""
        space = self._spaces[session]
        space.moves += 1
        space.running -= 1

    def problem(self, session: SessionId, number: int) -> Lost | None:
        """Why job ``number`` of a session must not run; None: nothing speaks against it."""
        space = self._spaces.get(session)
        if space is None or not space.lost:
            return None
        found = {address: space.arrays[address] for address in space.lost}
        usable = [
            (address, one)
            for address, one in found.items()
            if one.last_job is None or number <= one.last_job
        ]
        if not usable:
            return None
        present = tuple(address for address, one in usable if one.last_job is None)
        return Lost(present, len(usable) - len(present), usable[0][1].lost or "")

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
        space = self._spaces[session]
        array = space.arrays[address]
        array.blank = False
        if size == array.bytes:
            array.good_at = space.moves
            array.lost = None
            space.lost.pop(address, None)

    def in_file(self, session: SessionId, address: int) -> bool:
        """Whether the file holds an array, and no job runs that could change it."""
        space = self._spaces[session]
        return not space.running and space.arrays[address].good_at == space.moves

    def reading(self, session: SessionId, address: int) -> int:
        """A part of an array is about to be copied into the file; what `read` is to be given."""
        space = self._spaces[session]
        space.arrays[address].blank = False
        return space.moves

    def read(self, session: SessionId, address: int, offset: int, size: int, moves: int) -> None:
        """A part of an array was copied into the file; ``moves`` is what `reading` gave."""
        space = self._spaces.get(session)
        array = None if space is None else space.arrays.get(address)
        if space is None or array is None or array.lost is not None:
            return
        if size == array.bytes and moves == space.moves:
            array.good_at = moves

    def lost_values(self, session: SessionId, address: int) -> str | None:
        """Why an array's values are nowhere, in words that follow "its values"; None: they are."""
        return self._array(session, address).lost

    def lose(self, session: SessionId, address: int, reason: str) -> None:
        """The values of an array are nowhere."""
        space = self._spaces.get(session)
        array = None if space is None else space.arrays.get(address)
        if space is not None and array is not None:
            array.lost = reason
            array.good_at = _NEVER
            space.lost[address] = None

    def host_lost(self, reason: str) -> list[tuple[SessionId, int, int]]:
        """The host has gone with what its device had.

        Args:
            reason: as for `lose`.

        Returns:
            Session, arrays and bytes of what is lost by that, for each that has lost any.
        """
        found = []
        for session, space in self._spaces.items():
            space.running = 0
            going = [
                address
                for address, one in space.arrays.items()
                if one.lost is None and one.good_at != space.moves
            ]
            for address in going:
                self.lose(session, address, reason)
            if going:
                found.append((session, len(going), sum(space.arrays[at].bytes for at in going)))
        return found

    def _array(self, session: SessionId, address: int) -> _Array:
        space = self._spaces.get(session)
        array = None if space is None else space.arrays.get(address)
        if array is None or array.last_job is not None:
            raise UnknownName(f"there is no array at {address:#x}; was it freed already?")
        return array


def _held(address: int, one: _Array) -> Held:
    return Held(address, whole_pages(one.bytes), one.lost is None and not one.blank)
