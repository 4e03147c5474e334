"""Makes a session go on with the next daemon, after the one that it was opened with has ended.

Problem: a daemon that is restarted knows nothing of its sessions. Programs hold arrays, kernels,
prepared launches and jobs, and addresses of arrays lie in other arrays.

Approach: all that a session has made is made again, with the same device addresses. The memory of
a CPU device's arrays is a file that this process maps, too, so their values are copied from it, and
views of it show the new file afterwards. Kernels are compiled again, which the daemon has cached.
The daemon reports when a job begins, so that those that had not can be submitted again; what had
begun may have changed arrays, and fails.

Properties:
    once: no job that has begun is submitted again;
    named: whatever does not go on fails with the reason, and the log names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgpack

from gpud.errors import ConnectionLost, GpudError, PredecessorFailed
from gpud.wire.messages import Allocate, Compile, Measure, Resume, StreamFailure
from gpud_client.connection.pending import Notification, Operation, PendingJob, Request
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.launch.streams import unseen_failures

__all__ = ["begin", "resume"]

_LOG = logging.getLogger("gpud_client")
_LEAST_VERSION = 2
_FEW = 5  # that the log names


class Allocation(Protocol):
    """Memory of an array: its device's index, address and size in bytes.

    ``lost`` says that its values were in the memory of a device that ended with its daemon.
    """

    device: int
    address: int
    size: int
    lost: bool


class Compiled(Protocol):
    """A loaded module: what it was compiled from, and the shapes that were measured."""

    number: int
    fields: tuple[Any, ...]
    kernels: list[dict[str, Any]]
    symbols: Any
    measured: dict[tuple[int, tuple[int, int, int], int], tuple[int, str]]
    killable: set[tuple[int, tuple[int, int, int], int]]


def begin(core: ProtocolState, version: int) -> Operation[None]:
    """Tell a daemon, in a new session, that the session can outlive it.

    Raises:
        ConnectionLost: the daemon is too old.
    """
    if version < _LEAST_VERSION:
        raise ConnectionLost(
            f"the daemon speaks version {version} of the protocol, and sessions that reconnect "
            f"need {_LEAST_VERSION}: upgrade gpud where the daemon runs, or connect without "
            "reconnect"
        )
    last = core.last_job
    yield Request(lambda number: Resume(number, last))


def resume(
    core: ProtocolState,
    submit: Callable[..., Any],
    why: GpudError,
    before: int,
    copied: Collection[int],
) -> Operation[None]:
    """Make everything again in a session that `begin` has begun, and submit what had not begun.

    Args:
        core: the protocol's state.
        submit: as `gpud_client.connection.channel.Channel.submitting`.
        why: why the connection was lost.
        before: the number of the session at the daemon that has ended.
        copied: the indices of devices with memory of their own, whose arrays' values are lost.

    Raises:
        GpudError: something cannot be made again.
    """
    kept = core.resumable
    assert kept is not None
    arrays: list[Allocation] = sorted(kept.allocations, key=lambda one: one.address)
    modules: list[Compiled] = sorted(kept.modules, key=lambda one: one.number)
    core.garbage.clear()  # of the daemon that has ended
    yield from _allocate(arrays)
    numbers = yield from _compile(modules)
    for index, arena in core.new_arenas.items():
        old = core.arenas.get(index)
        if old is not None:
            arena.continue_from(old, [(a.address, a.size) for a in arrays if a.device == index])
    # From here to the first submission nothing is waited for: all of it happens, or nothing.
    core.take_new_arenas()
    for array in arrays:
        array.lost = array.device in copied
    renumbered = {module.number: number for module, number in zip(modules, numbers, strict=True)}
    for module, number in zip(modules, numbers, strict=True):
        module.number = number
    again, lost = _sort_jobs(core, renumbered, why, before)
    for failure in unseen_failures(core):  # of which the next daemon does not know
        yield Notification(StreamFailure(failure.stream._number, failure.number, False))
    refs: dict[tuple[int, int], tuple[int, int]] = {}
    for number, job in again:
        what = job._kept
        assert what is not None
        device, records, reservation, quota, line, follow, *rest = what.terms
        follow = tuple(refs[ref] for ref in follow if ref in refs)
        terms = (device, records, reservation, quota, line, follow, *rest)
        old_ref = job._ref
        core.jobs.pop(number, None)
        job._kept = what._replace(terms=terms)
        yield from submit(job, terms, what.users)
        refs[old_ref] = job._ref
    _report(core, why, before, arrays, modules, again, lost)


def _allocate(arrays: Sequence[Allocation]) -> Operation[None]:
    for array in arrays:
        device, size, address = array.device, array.size, array.address
        try:
            yield Request(_allocating(device, size, address))
        except GpudError as error:
            if isinstance(error, ConnectionLost):
                raise
            raise ConnectionLost(
                f"the session's array of {size} bytes at {address:#x} cannot be made again: {error}"
            ) from error


def _compile(modules: Sequence[Compiled]) -> Operation[list[int]]:
    numbers = []
    for module in modules:
        answer = yield Request(_compiling(module.fields))
        if [one["entry"] for one in answer.kernels] != [one["entry"] for one in module.kernels]:
            raise ConnectionLost("a source has other kernels when it is compiled again")
        numbers.append(int(answer.module))
        for (kernel, block, shared), was in list(module.measured.items()):
            killable = (kernel, block, shared) in module.killable
            measured = yield Request(
                _measuring(int(answer.module), kernel, block, shared, killable)
            )
            module.measured[kernel, block, shared] = int(measured.occupancy), str(measured.form)
            if (int(measured.occupancy), str(measured.form)) != was:
                _LOG.warning("a kernel has M %d now, which was %d", measured.occupancy, was[0])
    return numbers


def _sort_jobs(
    core: ProtocolState, renumbered: dict[int, int], why: GpudError, before: int
) -> tuple[list[tuple[int, PendingJob]], list[PendingJob]]:
    """Return the jobs to be submitted again, by number, and those that are lost and told so."""
    again: list[tuple[int, PendingJob]] = []
    lost: list[PendingJob] = []
    for number, job in list(core.jobs.items()):
        kept = job._kept
        reason = None
        if job._begun:
            reason = (
                "had begun when the daemon ended, and its arrays hold unspecified values: write "
                "them again, and submit it again"
            )
        elif kept is None:
            reason = "was submitted before the session could go on with another daemon"
        elif job._device.arrays == "copied":
            reason = (
                f"had not begun, but the values of its arrays were in the memory of "
                f"{job._device.name}, which ends with the daemon: write them again, and submit it "
                "again"
            )
        elif any(session != before for session, _ in kept.terms[5]):
            reason = "follows a job of another session, which has ended with the daemon"
        if job._stream._has_failed:
            lost.append(job)
            core.jobs.pop(number, None)
            job._lose(
                PredecessorFailed(
                    f"job {job.id} ({job._what}) was not run: a job before it in its stream has "
                    "failed"
                )
            )
            continue
        if reason is None and kept is not None:
            device, records, *rest = kept.terms
            launches = msgpack.unpackb(records)
            for launch in launches:
                launch[0] = renumbered[launch[0]]
            terms = (device, msgpack.packb(launches), *rest)
            job._kept = kept._replace(terms=terms)
            again.append((number, job))
        else:
            lost.append(job)
            core.jobs.pop(number, None)
            job._lose(ConnectionLost(f"job {job.id} ({job._what}) {reason} ({why})"))
    return again, lost


def _report(
    core: ProtocolState,
    why: GpudError,
    before: int,
    arrays: Sequence[Allocation],
    modules: Sequence[Compiled],
    again: Sequence[object],
    lost: Sequence[PendingJob],
) -> None:
    gone = [f"job {job.id} ({job._what})" for job in lost]
    gone += [f"lane {before}.{number}" for number in core.ended_lanes]
    core.ended_lanes.clear()
    empty = sum(array.lost for array in arrays)
    gone += [f"the values of {empty} arrays on a GPU"] if empty else []
    gone += [f"the value of {name}" for module in modules for name in module.symbols]
    more = f" and {len(gone) - _FEW} more" if len(gone) > _FEW else ""
    _LOG.warning(
        "%s; session %d goes on as session %d of the next daemon: %d arrays, %d modules, %d jobs "
        "submitted again; lost: %s%s",
        why, before, core.session, len(arrays), len(modules), len(again),
        ", ".join(gone[:_FEW]) or "nothing", more,
    )  # fmt: skip


def _allocating(device: int, size: int, address: int) -> Callable[[int], Allocate]:
    return lambda number: Allocate(number, device, size, address)


def _compiling(fields: tuple[Any, ...]) -> Callable[[int], Compile]:
    return lambda number: Compile(number, *fields)


def _measuring(
    module: int, kernel: int, block: tuple[int, int, int], shared: int, killable: bool
) -> Callable[[int], Measure]:
    return lambda number: Measure(number, module, kernel, block, shared, killable)
