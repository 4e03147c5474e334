"""Handles submissions: validates a `gpud.wire.messages.Submit` and makes a job of it.

This is the hot path. Services submit the same chain of launches again and again, so a validated
chain is cached by its bytes, for as long as its modules are loaded.
"""

from __future__ import annotations

import time
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from gpud.core.events import JobSubmitted, LaunchShape
from gpud.device.host.messages import HOST_PROTOCOL
from gpud.errors import (
    Draining,
    GpudError,
    InvalidArgument,
    LaunchConfigError,
    UnknownName,
    from_wire,
)
from gpud.server.state.modules import Kernel, Module, Shape, always_polls
from gpud.server.state.submitted_job import Chain, Job
from gpud.units import JobId, SessionId, job_id
from gpud.wire.messages import CLIENT_PROTOCOL, Finished, Launch, Submit

if TYPE_CHECKING:
    from gpud.server.state.session import Session

__all__ = ["refuse", "submit"]

_MOST_TASK_BLOCKS = 2**31 - 1
_MOST_LAUNCHES = 4096
_MOST_CHAIN_BYTES = 1 << 25  # the most that a device host reads, see `StartJob`


def submit(session: Session, message: Submit) -> None:
    """Handle a submission: passes the job to the scheduler, or tells the client why not."""
    number = message.number
    if number != session.last_number + 1:
        refuse(
            session,
            number,
            InvalidArgument(
                f"jobs are numbered 1, 2, 3 ...: after {session.last_number} comes "
                f"{session.last_number + 1}, not {number}"
            ),
        )
        return
    session.last_number = number
    try:
        _submit(session, message)
    except GpudError as error:
        refuse(session, number, error)


def refuse(session: Session, number: int, error: GpudError) -> None:
    """Tell a client that its job ``number`` was refused.

    Raises:
        GpudError: ``error`` itself, if ``number`` is that of a job that the scheduler has accepted.
    """
    if number in session.jobs:
        raise error
    if number == session.last_number + 1:
        session.last_number = number
    session.send(Finished(number, "failed", error.to_wire(), b"", {}, (0, 0)))


def _submit(session: Session, message: Submit) -> None:
    front = session.front
    if front.draining:
        raise Draining("the daemon is ending and takes no more jobs; submit to the next one")
    device = front.usable_device(message.device)
    # An online job keeps its share whatever it does, so it is spared the cost of kill polls.
    timed = message.timeout_ns is not None and message.reservation is None
    killable = timed or always_polls(device.info)
    chain = session.chains.get((message.device, message.launches, killable))
    if chain is None:
        chain = _chain(session, message.device, message.launches, killable=killable)
    if message.reservation is not None and message.quota is not None:
        raise InvalidArgument("a job has a reservation or a quota, not both")
    after = _after(session, message) if message.after else ()
    now_ns = time.monotonic_ns()
    number = message.number
    job = Job(job_id(session.number, number), number, session, device.index, chain, now_ns)
    job.online = message.reservation is not None
    job.follows = len(after)
    session.add_job(job)
    deadline_ns = message.deadline_ns
    front.runner.submit(
        job,
        JobSubmitted(
            now_ns,
            job.id,
            SessionId(session.number),
            device.index,
            chain.shapes,
            _fraction(message.reservation),
            _fraction(message.quota),
            message.stream,
            after,
            None if deadline_ns is None else now_ns + deadline_ns,
            message.timeout_ns,
            message.weight,
            killable,
            message.exclusive,
            device.jobs.is_prepared(job.id, chain),
        ),
    )


@lru_cache(maxsize=1024)
def _fraction(amount: tuple[int, int] | None) -> Fraction | None:
    return None if amount is None else Fraction(*amount)


def _after(session: Session, message: Submit) -> tuple[JobId, ...]:
    """The jobs to wait for. Jobs of other users are left out, as unknown and ended ones are."""
    found = []
    for number, job in message.after:
        if number == session.number and job >= message.number:
            raise InvalidArgument(f"job {message.number} cannot follow job {job}, which is later")
        one = session.front.visible_job(session, job_id(SessionId(number), job))
        if one is not None:
            found.append(one.id)
    return tuple(found)


# -- chains ----------------------------------------------------------------------------------------


def _chain(session: Session, device: int, data: bytes, *, killable: bool) -> Chain:
    """Validate the launches of a submission, and cache the chain that they make.

    Raises:
        GpudError: one of the launches is invalid; the message says which.
    """
    found = CLIENT_PROTOCOL.decode_records(Launch, data, least=1, most=_MOST_LAUNCHES)
    wire: list[list[Any]] = []
    shapes: list[LaunchShape] = []
    needs: list[tuple[Module, Shape]] = []
    kernels: list[str] = []
    for index, launch in enumerate(found):
        try:
            module, kernel, occupancy, form = _checked(session, device, launch, killable=killable)
        except GpudError as error:
            if len(found) > 1:
                told = error.to_wire()
                told["message"] = f"launch {index}: {error.message}"
                raise from_wire(told) from None
            raise
        total = prod(launch.grid)
        wire.append(
            [
                module.number,
                kernel.info.entry_for(launch.block, killable=killable),
                form,
                list(launch.grid),
                list(launch.block),
                launch.shared,
                launch.parameters,
                occupancy,
            ]
        )
        shapes.append(LaunchShape(occupancy, total, form != "whole"))
        polls = killable and kernel.info.killable
        needs.append((module, (launch.kernel, launch.block, launch.shared, polls)))
        kernels.append(kernel.name)
    packed = HOST_PROTOCOL.encode_records(wire)
    if len(packed) > _MOST_CHAIN_BYTES:
        raise InvalidArgument(
            f"the launches take {len(packed)} bytes, and those of one job may take "
            f"{_MOST_CHAIN_BYTES}: split the job"
        )
    chain = Chain(packed, tuple(shapes), needs, kernels, len(data), killable=killable)
    session.cache_chain((device, data, killable), chain)
    return chain


def _checked(
    session: Session, device: int, launch: Launch, *, killable: bool
) -> tuple[Module, Kernel, int, str]:
    """Validate a launch; returns its module, kernel, M and form."""
    module = session.module(launch.module)
    if module.device != device:
        raise InvalidArgument(
            f"module {launch.module} is on device {module.device}, the job on device {device}"
        )
    kernel = session.kernel(module, launch.kernel)
    if prod(launch.grid) > _MOST_TASK_BLOCKS:
        raise LaunchConfigError(
            "grid",
            launch.grid,
            f"{prod(launch.grid)} task blocks are over {_MOST_TASK_BLOCKS}; split the work",
            limit=_MOST_TASK_BLOCKS,
        )
    if len(launch.parameters) != kernel.parameter_bytes:
        raise InvalidArgument(
            f"{kernel.name} has {kernel.parameter_bytes} bytes of parameters, not "
            f"{len(launch.parameters)}"
        )
    shape = (launch.kernel, launch.block, launch.shared)
    measured = module.measured.get((*shape, killable and kernel.info.killable))
    if measured is None:  # the variant with kill polls is compiled when the job starts
        measured = module.measured.get((*shape, False))
    if measured is None:
        raise UnknownName(
            f"{kernel.name} was not measured for blocks of {launch.block} with {launch.shared} "
            "bytes of dynamic shared memory; send Measure first"
        )
    info = session.front.devices[device].info
    if kernel.info.cooperative and info is not None:
        LaunchConfigError.check_together(launch.grid, measured[0], info.sms)
    return module, kernel, *measured
