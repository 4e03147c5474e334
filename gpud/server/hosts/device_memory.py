"""Arrays on a device that has memory of its own: commits memory, and copies from and to the files.

Problem: memory must be committed, and the values copied, before an array is used; neither a client
nor a job may see stale values after a host was lost; and no session may wait for another's copies.

Approach: `gpud.core.memory.coherence` tracks what the files hold, `gpud.core.memory.pending_writes`
which jobs must wait for copies under way. Requests go through the registry
(`gpud.server.hosts.resources`), so a new host gets the arrays again when a session first needs it.

Properties:
    writes_visible: a job that is submitted after an array was written sees what was written, and
        does not wait for later writes;
    bounded: however often a session writes, at most `MOST_PARTS` copies of an array wait, and
        `MOST_REGION_PARTS` of a workload's memory, in which many arrays lie; who writes more parts
        waits;
    loss_reported: using values that are lost, or could not be copied, is an error.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gpud.core.memory.coherence import ArrayExtent, CoherenceTracker, LostArrays
from gpud.core.memory.pending_writes import PendingWrites
from gpud.errors import DeviceLost, GpudError, LimitExceeded, OutOfMemory, UnknownName
from gpud.server.hosts.current_host import CurrentHost
from gpud.server.hosts.requests import HostRequests
from gpud.server.ipc.child_process import OnReply
from gpud.units import SessionId

__all__ = ["MOST_PARTS", "MOST_READS", "MOST_REGION_PARTS", "DeviceArrays"]

MOST_PARTS = 64
"""The most different parts of one array that wait to be copied to the device."""

MOST_REGION_PARTS = 1 << 14
"""The same of a workload's memory."""

MOST_READS = 4096
"""The most copies from the device that a session may have pending."""

OnExported = Callable[[Any, GpudError | None], None]

_LAST_JOB = 1 << 63
"""A number that no job of a session reaches."""

_KEEP_TRYING = "write all of it with set(), or free it"


class _Parts:
    """Parts of an array, (offset, size), that wait for the copy under way.

    Each maps to the number of its first pending write, the one that jobs wait for longest.
    """

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, int], int] = {}
        self.when_copied: Callable[[], None] | None = None


class DeviceArrays:
    """The arrays of all sessions on one device.

    Args:
        host: the device's current host.
        requests: sends requests that survive the loss of a host.
    """

    def __init__(self, host: CurrentHost, requests: HostRequests) -> None:
        self.copies = CoherenceTracker()
        self._host = host
        self._requests = requests
        self._parts: dict[tuple[SessionId, int], _Parts] = {}
        self._writes = PendingWrites()
        self._when_written: dict[SessionId, list[tuple[int, Callable[[], None]]]] = {}
        self._reads: Counter[SessionId] = Counter()
        self._releases = 0
        self._when_released: list[Callable[[], None]] = []

    # -- arrays

    def arrays_of(self, session: int) -> list[ArrayExtent]:
        """Return a session's arrays, for which a new host must commit memory."""
        return self.copies.arrays(SessionId(session))

    def commit(self, session: SessionId, address: int, on_reply: OnReply) -> None:
        """Commit memory for a new array."""
        array = partial(self.copies.array, session, address)

        def committed(value: Any, error: GpudError | None) -> None:
            if isinstance(error, OutOfMemory) and self._releases:
                # Memory is being released: try again when it has been.
                self._when_released.append(again)
            else:
                on_reply(value, error)

        def again() -> None:
            self._requests.ask(
                lambda reply: self._host.registry.commit(session, array, reply), committed
            )

        again()

    def release(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Release the memory of an array that no job can use any more."""
        self.copies.removed(session, address)
        parts = self._parts.pop((session, address), None)
        if parts is not None:
            self._arrived(session, parts.waiting.values())
        self._host.registry.release(session, address, size, self._releasing(done))

    def shrink(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Make an array smaller at its place; no job can use its end any more.

        Args:
            session: whose array it is.
            address: the array's.
            size: bytes that it has from now on, whole pages.
            done: gets what went wrong.
        """
        before = self.copies.array(session, address)
        assert before is not None, "an array shrinks that is not there"
        self.copies.shrunk(session, address, size)
        parts = self._parts.get((session, address))
        if parts is not None:
            beyond = [part for part in parts.waiting if part[0] >= size]
            self._arrived(session, [parts.waiting.pop(part) for part in beyond])
        released = self._releasing(done)
        self._host.registry.shrink(session, address, (before.size, size), released)

    def _releasing(self, done: OnReply) -> OnReply:
        """Count a release until its reply, which ``done`` gets; then try what lacked memory."""
        self._releases += 1

        def released(value: Any, error: GpudError | None) -> None:
            self._releases -= 1
            done(value, error)
            if not self._releases:
                waiting, self._when_released = self._when_released, []
                for action in waiting:
                    action()

        return released

    def move_out(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Copy all of an array to the file, release its memory, and forget it.

        No job can use it. After an error it is there, or its values are lost.
        """

        def copied(_: Any, error: GpudError | None) -> None:
            if error is None and self.copies.array(session, address) is None:
                error = UnknownName("the session has ended")
            if error is not None:
                done(None, error)
            else:
                # An error means that the host is gone, and its memory with it.
                self.release(session, address, size, lambda *_: done(None, None))

        def written() -> None:
            try:
                self.read(session, address, 0, size, copied, moves=True)
            except GpudError as error:
                done(None, error)

        self.when_written(session, _LAST_JOB, written)

    def move_in(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Commit memory for an array that was moved out, and copy it from the file."""
        self.copies.allocated(session, address, size)
        self.copies.written(session, address, 0, size)

        def committed(_: Any, error: GpudError | None) -> None:
            if error is not None and self.copies.array(session, address) is not None:
                self.copies.removed(session, address)
            done(None, error)

        self.commit(session, address, committed)

    def close_session(self, session: SessionId) -> None:
        """Drop a session's arrays; its arena is closed."""
        self.copies.closed(session)
        self._writes.closed(session)
        self._when_written.pop(session, None)
        for key in [key for key in self._parts if key[0] == session]:
            del self._parts[key]

    # -- from the file to the device

    def write(
        self,
        session: SessionId,
        address: int,
        offset: int,
        size: int,
        last_job: int,
        most: int = MOST_PARTS,
        when_written: Callable[[], None] | None = None,
    ) -> bool:
        """Copy a part of an array, which the session has written, from the file to the device.

        Jobs after ``last_job``, the number of the session's newest job, see the new values. No more
        than ``most`` different parts of the array wait.

        Returns:
            Whether there was room for it. If not, it is written once a part has been copied, and
            ``when_written`` is called then; there must be no other call for the array until then.

        Raises:
            UnknownName, InvalidArgument: there is no such array or part.
        """
        self.copies.check(session, address, offset, size)
        part = (offset, size)
        key = (session, address)
        parts = self._parts.get(key)
        if parts is not None and part not in parts.waiting and len(parts.waiting) >= most:

            def copied() -> None:
                self.write(session, address, offset, size, last_job, most)
                if when_written is not None:
                    when_written()

            parts.when_copied = copied
            return False
        self.copies.written(session, address, offset, size)
        if parts is None:
            self._write(key, _Parts(), part, self._writes.begin(session, last_job))
        elif part not in parts.waiting:
            parts.waiting[part] = self._writes.begin(session, last_job)
        return True

    def _write(
        self, key: tuple[SessionId, int], parts: _Parts, part: tuple[int, int], number: int
    ) -> None:
        session, address = key
        registry = self._host.registry
        if registry.has_array(session, address):
            self._parts[key] = parts
            registry.upload(session, address, *part, partial(self._written, key, parts, number))
        else:  # all of it is copied when the host gets the array
            self._arrived(session, (number, *parts.waiting.values()))

    def _written(
        self,
        key: tuple[SessionId, int],
        parts: _Parts,
        number: int,
        _: Any,
        error: GpudError | None,
    ) -> None:
        session, address = key
        arrived = [number]
        if self._parts.get(key) is parts:
            del self._parts[key]
            if error is not None and not isinstance(error, DeviceLost):
                reason = f"could not be copied to the device ({error.message})"
                self.copies.mark_lost(session, address, reason)
                arrived += parts.waiting.values()
            elif parts.waiting:
                part, following = next(iter(parts.waiting.items()))
                del parts.waiting[part]
                self._write(key, parts, part, following)
            if parts.when_copied is not None:
                when_copied, parts.when_copied = parts.when_copied, None
                when_copied()
        self._arrived(session, arrived)

    def _arrived(self, session: SessionId, writes: Iterable[int]) -> None:
        """End these writes, and call what has waited for them."""
        self._writes.end(session, writes)
        waiting = self._when_written.pop(session, ())
        still = [one for one in waiting if self._writes.is_waited_for(session, one[0])]
        if still:
            self._when_written[session] = still
        for one in waiting:
            if one not in still:
                one[1]()

    # -- from the device to the file

    def read(
        self,
        session: SessionId,
        address: int,
        offset: int,
        size: int,
        on_reply: OnReply,
        *,
        moves: bool = False,
    ) -> None:
        """Copy a part of an array from the device to the file, unless the file is up to date.

        ``moves``: the same part will be copied back, and again.

        Raises:
            UnknownName, InvalidArgument: there is no such array or part.
            LimitExceeded: the session has too many copies pending.
        """
        self.copies.check(session, address, offset, size)
        if self._reads[session] >= MOST_READS:
            raise LimitExceeded(
                f"the session waits for {MOST_READS} copies from the device; wait for some",
                limit="reads",
                value=MOST_READS,
            )
        self._reads[session] += 1

        def told(value: Any, error: GpudError | None) -> None:
            self._reads[session] -= 1
            if not self._reads[session]:
                del self._reads[session]
            on_reply(value, error)

        def ask(reply: OnReply) -> None:
            try:
                self.copies.check(session, address, offset, size)  # may be freed meanwhile
                reason = self.copies.loss_reason(session, address)
            except GpudError as error:
                reply(None, error)
                return
            if reason is not None:
                told(None, self._lost_array(address, reason))  # retrying cannot help
            elif self.copies.in_file(session, address):
                reply(None, None)
            else:
                epoch = self.copies.begin_read(session, address)

                def copied(value: Any, error: GpudError | None) -> None:
                    if error is None:
                        self.copies.end_read(session, address, offset, size, epoch)
                    reply(value, error)

                part = offset, size
                self._host.registry.download(session, address, *part, copied, moves=moves)

        self._requests.ask(ask, told)

    # -- from the device to the client's process

    def export(
        self, session: SessionId, address: int, first: int, known: int, then: OnExported
    ) -> None:
        """Have a client map memory of an array, once what was written to it has arrived.

        Args:
            session: whose array it is.
            address: the array's.
            first: the byte from which on memory is asked for.
            known: `ResourceRegistry.host` of what the client has mapped; 0: nothing.
            then: gets the host's number and two sockets, the daemon's end and the client's, or None
                if the host is known; or the error.

        Raises:
            UnknownName, InvalidArgument: there is no such array or byte.
        """
        self.copies.check(session, address, first, 1)
        size = self.copies.exported(session, address)

        def ask(reply: OnReply) -> None:
            registry = self._host.registry
            try:
                self.copies.check(session, address, first, 1)  # may be freed meanwhile
                reason = self.copies.loss_reason(session, address)
            except GpudError as error:
                reply(None, error)
                return
            if reason is not None:
                then(None, self._lost_array(address, reason))  # retrying cannot help
                return
            if registry.host == known:
                reply((known, None), None)
                return
            ends = socket.socketpair()

            def exported(_: Any, error: GpudError | None) -> None:
                if error is not None:
                    for end in ends:
                        end.close()
                    reply(None, error)
                else:
                    reply((registry.host, ends), None)

            part = first, size - first
            registry.export(session, address, part, ends[0].fileno(), exported)

        self.when_written(session, _LAST_JOB, lambda: self._requests.ask(ask, then))

    def _lost_array(self, address: int, reason: str) -> DeviceLost:
        return self._host.lost_error(
            f"has lost the array at {address:#x}: its values {reason}; {_KEEP_TRYING}"
        )

    # -- jobs

    def problem(self, session: SessionId, number: int) -> DeviceLost | None:
        """Return why a job, which could use lost values, must not be started; None if it may be."""
        lost = self.copies.lost_arrays(session, number)
        return None if lost is None else self._host.lost_error(_described(lost))

    def is_written(self, session: SessionId, number: int) -> bool:
        """Whether everything written before the session's job ``number`` has been copied."""
        return not self._writes.is_waited_for(session, number)

    def when_written(self, session: SessionId, number: int, action: Callable[[], None]) -> None:
        """Call ``action`` once `is_written` holds."""
        if self.is_written(session, number):
            action()
        else:
            self._when_written.setdefault(session, []).append((number, action))


def _described(lost: LostArrays) -> str:
    count = len(lost.arrays) + lost.freed
    arrays = "an array" if count == 1 else f"{count} arrays"
    where = f" (at {', '.join(map(hex, lost.arrays[:3]))})" if lost.arrays else ""
    them, its = ("it", "its") if count == 1 else ("them", "their")
    return (
        f"has lost {arrays}{where} of the session's, which the job could have used: {its} values "
        f"{lost.reason}; write all of {them} with set(), or free {them}, and submit again"
    )
