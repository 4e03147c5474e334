"""Checks what a job says of the memory of workloads that it uses.

A job that has arguments in a workload's memory says which, and how much of either kind. It is
refused before it runs if that cannot be: the workload has less, or is in no iteration where it has
to be, or an argument points into the memory of another workload.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpud.errors import InvalidArgument
from gpud.server.state.access import may_manage
from gpud.server.state.sequence import ValidatedSequence
from gpud.server.state.session import Session
from gpud.server.workloads.workload import Workload, workload_name
from gpud.server.workloads.workloads import Workloads
from gpud.wire.messages import CLIENT_PROTOCOL, LaunchRecord, Submit

__all__ = ["check_use"]

_POINTERS = ("pointer", "uint", "int", "bits")


def check_use(
    workloads: Workloads, session: Session, message: Submit, sequence: ValidatedSequence
) -> None:
    """Check the workload's memory that a job says it uses.

    Args:
        workloads: all of them.
        session: whose the job is.
        message: the submission; it names a workload.
        sequence: its launches.

    Raises:
        UnknownName: the session has no such workload.
        InvalidArgument: the job cannot use its memory as it says.
    """
    assert message.memory is not None
    number, persistent, temporary = message.memory
    workload = workloads.own(session, number)
    name = workload_name(number)
    region = workloads.manager.region(number)
    if region is None or workload.device != message.device:
        raise InvalidArgument(
            f"the job runs on device {message.device}, and workload {name} has its memory on "
            f"device {workload.device}: submit it there"
        )
    most = region.size + region.offset, 0 if workload.lent is None else workload.lent[1]
    for kind, used, has in zip(
        ("persistent", "temporary"), (persistent, temporary), most, strict=True
    ):
        if used > has:
            raise InvalidArgument(
                f"the job says to use {used} bytes of the {kind} memory of workload {name}, which "
                f"has {has}"
            )
    within = workloads.iterating(workload) and not workload.ends_iteration
    if (temporary or workload.movable) and not within:
        kind = "temporary" if temporary else "movable"
        raise InvalidArgument(
            f"the job uses {kind} memory of workload {name}, which is in no iteration: submit it "
            "within one"
        )
    # Launches that differ only in their arguments share a sequence.
    known = message.memory, message.launches, tuple(workloads.all)
    if sequence.memory_checked != known:
        _check_pointers(workloads, session, workload, message, sequence)
        sequence.memory_checked = known


def _check_pointers(
    workloads: Workloads,
    session: Session,
    workload: Workload,
    message: Submit,
    sequence: ValidatedSequence,
) -> None:
    others = [
        one
        for one in workloads.all.values()
        if one is not workload and may_manage(session.peer, one.owner.uid)
    ]
    if not others:
        return
    launches = CLIENT_PROTOCOL.decode_records(LaunchRecord, message.launches, least=1)
    for launch, module in zip(launches, sequence.modules, strict=True):
        kernel = session.kernel(module, launch.kernel)
        for index, (kind, size, offset) in enumerate(module.program.parameters(launch.kernel)):
            if size != 8 or kind not in _POINTERS:
                continue
            raw = launch.parameters[offset : offset + 8]
            address = int.from_bytes(raw, "little")
            for other in others:
                for part, start, length in _ranges(other):
                    if start <= address < start + length:
                        raise InvalidArgument(
                            f"argument {index} of {kernel.name} is in the {part} memory of "
                            f"workload {workload_name(other.number)} ({other.owner.program}), and "
                            f"the job is of {workload_name(workload.number)}: use arrays of its "
                            "own, or of the session"
                        )


def _ranges(workload: Workload) -> Iterator[tuple[str, int, int]]:
    """Yield kind, address and bytes of a workload's memory, where the daemon has placed it."""
    if workload.device is not None and not workload.mapped:
        yield "persistent", workload.address, workload.region_bytes
        if workload.lent is not None:
            yield "temporary", *workload.lent
