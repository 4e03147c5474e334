"""The reference page of lifecycles, made of the tables in gpud/core/lifecycles.py."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gpud.core.lifecycles import (
    DEVICES,
    JOBS,
    SESSIONS,
    DeviceInput,
    DeviceState,
    JobInput,
    JobState,
    SessionInput,
    SessionState,
)
from gpud.tasks.core.lifecycle import TASKS, TaskInput, TaskState

__all__ = ["lifecycles_page"]

_HEAD = """\
# Lifecycles

<!-- Written by docs/generate_lifecycles.py from gpud/core/lifecycles.py and
gpud/tasks/core/lifecycle.py: change those. -->

What jobs, sessions and devices go through, as the daemon's scheduler sees it, and tasks, as their
runner's does. These are all transitions there are: anything else is a bug in gpud, which is
reported with the object's history.
"""

_JOB_STATES: Mapping[StrEnum, str] = {
    JobState.BLOCKED: "waits for jobs that it must follow: in its stream, or by `after=`",
    JobState.PREPARING: "waits for what it needs to be on its device: programs, memory, values",
    JobState.WAITING: "waits for capacity; nothing of it has run",
    JobState.RUNNING: "has an allocation",
    JobState.PAUSED: "has run, and its allocation is 0 now; it keeps its progress",
    JobState.ENDING: "was cancelled or timed out, and blocks of it have not left yet",
    JobState.DONE: "every task block has run",
    JobState.FAILED: "failed by itself, was refused, timed out, or lost its device",
    JobState.CANCELLED: "was cancelled, or its client has gone",
}

_JOB_INPUTS: Mapping[StrEnum, str] = {
    JobInput.PREPARE: "all jobs that it must follow have ended, and its device lacks something",
    JobInput.READY: "its turn has come, and its device has what it needs",
    JobInput.START: "it is given an allocation for the first time",
    JobInput.PAUSE: "all of its allocation was needed for online jobs",
    JobInput.RESUME: "it is given an allocation again",
    JobInput.REQUEUE: "its device was lost before it knew of the job; the next one starts "
    "with nothing",
    JobInput.END: "it was started, and is told to end: cancelled, or out of time",
    JobInput.COMPLETE: "its device says that every task block has run",
    JobInput.FAIL: "it is refused, fails on its device, loses it, or has ended after its timeout",
    JobInput.CANCEL: "it was cancelled, and nothing of it runs any more",
}

_SESSION_STATES: Mapping[StrEnum, str] = {
    SessionState.OPEN: "a client is connected",
    SessionState.CLOSING: "the client has gone; its jobs are being ended",
    SessionState.CLOSED: "nothing of it is left on any device; its memory is given back",
}

_SESSION_INPUTS: Mapping[StrEnum, str] = {
    SessionInput.CLOSE: "the connection has ended",
    SessionInput.LAST_JOB_GONE: "nothing of the session runs or waits",
}

_DEVICE_STATES: Mapping[StrEnum, str] = {
    DeviceState.STARTING: "its host process is being started; jobs wait for it",
    DeviceState.READY: "runs jobs",
    DeviceState.REPLACING: "a job did not end when it was told to; the host is being ended",
    DeviceState.GONE: "its host ended too often; jobs for it are refused",
}

_DEVICE_INPUTS: Mapping[StrEnum, str] = {
    DeviceInput.UP: "the device host says that it is ready",
    DeviceInput.REPLACE: "a job outlived its grace time",
    DeviceInput.FAIL: "the host has ended; another one is started",
    DeviceInput.GIVE_UP: "the host has ended, and no other one is started",
}

_TASK_STATES: Mapping[StrEnum, str] = {
    TaskState.BLOCKED: "waits for tasks that must be done before it",
    TaskState.HELD: "its user holds it back",
    TaskState.QUEUED: "waits for cores and GPUs",
    TaskState.RUNNING: "an attempt of it runs",
    TaskState.FROZEN: "its processes are suspended; they keep their memory and have no cores",
    TaskState.STOPPING: "its processes were told to end",
    TaskState.DONE: "its program ended with status 0",
    TaskState.FAILED: "its program failed, could not be run, was lost, or took too long",
    TaskState.CANCELLED: "a user ended it",
}

_TASK_INPUTS: Mapping[StrEnum, str] = {
    TaskInput.HOLD: "`gpuctl task hold`",
    TaskInput.RELEASE: "`gpuctl task release`",
    TaskInput.READY: "all tasks before it are done",
    TaskInput.START: "there are cores and GPUs for it",
    TaskInput.FREEZE: "its cores are needed by a GPU task",
    TaskInput.THAW: "there are cores for it again",
    TaskInput.STOP: "it was cancelled, is out of time, or its cores are needed and it cannot be "
    "frozen",
    TaskInput.REQUEUE: "it is run again: it was stopped for others, lost, or failed with retries "
    "left",
    TaskInput.COMPLETE: "its program ended with status 0",
    TaskInput.FAIL: "its program failed and is not run again, or a task before it was not done",
    TaskInput.CANCEL: "it was cancelled, and nothing of it runs any more",
}

_Page = tuple[str, Any, Mapping[StrEnum, str], Mapping[StrEnum, str]]

# The first state of each is where it begins.
_PAGES: tuple[_Page, ...] = (
    ("Jobs", JOBS, _JOB_STATES, _JOB_INPUTS),
    ("Sessions", SESSIONS, _SESSION_STATES, _SESSION_INPUTS),
    ("Devices", DEVICES, _DEVICE_STATES, _DEVICE_INPUTS),
    ("Tasks", TASKS, _TASK_STATES, _TASK_INPUTS),
)


def lifecycles_page() -> str:
    """Return the reference page of all lifecycles."""
    parts = [_HEAD]
    for title, table, states, inputs in _PAGES:
        parts.append(f"\n## {title}\n\nThe first state is where each begins.\n")
        parts.append(
            "\n| state | meaning | what happens, and the next state |\n| --- | --- | --- |\n"
        )
        parts += [
            f"| `{state}` | {meaning} | {_transitions(table, state)} |\n"
            for state, meaning in states.items()
        ]
        parts.append("\n| what happens | meaning |\n| --- | --- |\n")
        parts += [f"| {by} | {meaning} |\n" for by, meaning in inputs.items()]
    return "".join(parts)


def _transitions(table: Mapping[tuple[StrEnum, StrEnum], StrEnum], state: StrEnum) -> str:
    leaving = [f"{by}: `{after}`" for (before, by), after in table.items() if before == state]
    return ", ".join(leaving) or "the end"
