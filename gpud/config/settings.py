"""The table of settings.

Each field of `Config` is a setting, declared once: its type, how it is written, its default and
what it means. The key in the file is the field's name without its unit; ``GPUD_`` and the key in
capitals is the environment variable; ``--`` and the key with hyphens is the flag.
"""

# ruff: noqa: RUF009  (`_setting` returns a dataclass field, which is where its default belongs)

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from gpud.config import kinds
from gpud.config.kinds import Kind
from gpud.units import share
from gpud.wire.socket_path import default_socket_path

__all__ = ["SETTINGS", "Config", "Setting"]

_UNIT = "_ns"


class Setting(NamedTuple):
    """A row of the table.

    Attributes:
        name: the field of `Config`.
        key: in the file.
        variable: in the environment.
        flag: of `gpud serve`.
        many: the flag may be given several times.
        kind: how values are written.
        default: the default as it would be written; None: nothing, or worked out when it is used.
        meaning: for the reference page and ``--help``; it says the default where that is worked
            out.
    """

    name: str
    key: str
    variable: str
    flag: str
    many: bool
    kind: Kind
    default: str | None
    meaning: str


def _setting(
    kind: Kind,
    default: str | None,
    meaning: str,
    *,
    flag: str | None = None,
    make: Callable[[], Any] | None = None,
) -> Any:
    about = {"kind": kind, "default": default, "meaning": meaning, "flag": flag}
    if make is not None:
        return field(default_factory=make, metadata=about)
    value = None if default is None else kind.from_text(default)
    return field(default=value, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings. `gpud.config.load` makes one; ``Config()`` has the defaults.

    Amounts of memory are ints (bytes) or Fractions (parts).
    """

    socket: Path = _setting(
        kinds.socket_location(),
        None,
        "where clients connect; by default $XDG_RUNTIME_DIR/gpud/gpud.sock, where that is not set "
        "/run/gpud/gpud.sock for root and /tmp/gpud-UID/gpud.sock for others",
        make=default_socket_path,
    )
    socket_mode: int = _setting(
        kinds.mode(), "0600", "who may connect; each user sees and manages only what is their own"
    )
    devices: tuple[str, ...] = _setting(
        kinds.listed(kinds.word("a device: auto, cpu, cpu:SMS, cuda or cuda:N")),
        "auto",
        "the devices to serve, in this order: cpu, cpu:SMS, cuda, cuda:N, or auto, the first GPU "
        "or else the CPU",
        flag="--device",
    )
    policy: str = _setting(
        kinds.word("the name of a scheduling policy"),
        "reservations",
        "how jobs share a device: reservations; or, to compare with, fifo (run to completion) or "
        "equal (equal shares, no reservations)",
    )
    offline_floor: str = _setting(
        kinds.amount(), "0", "what online jobs always leave to offline ones, on each device"
    )
    fences: bool = _setting(
        kinds.switch(),
        "on",
        "whether every access of a kernel to memory is checked, so that none can reach what is not "
        "its session's; off, a wrong index can change another session's arrays or end the device's "
        "host",
    )
    release_path: str = _setting(
        kinds.choice("mapped", "write_value", "copy", "memset"),
        "mapped",
        "how blocks that run on a GPU are told to leave: mapped, they look into host memory; or a "
        "word in the GPU's memory is set by write_value, copy or memset, three ways of the driver",
    )
    hold_ns: int = _setting(
        kinds.duration("ms", most_s=60),
        "0 ms",
        "how long what an ended online job had is kept for other online jobs, so that a burst of "
        "them does not resize the offline ones for each",
    )
    grace_ns: int = _setting(
        kinds.duration("s", most_s=3600, least_ns=10**7),
        "2 s",
        "how long the blocks of a job that was ended may take to leave, before its device's host "
        "is replaced",
    )
    host_timeout_ns: int = _setting(
        kinds.duration("s", most_s=3600, least_ns=10**8),
        "30 s",
        "how long a device host may not answer before it counts as hung and is replaced",
    )
    drain_timeout_ns: int = _setting(
        kinds.duration("s", most_s=7 * 86400),
        "30 s",
        "how long jobs may go on after SIGTERM before they are cancelled",
    )
    compile_timeout_ns: int = _setting(
        kinds.duration("s", most_s=3600, least_ns=10**8),
        "60 s",
        "how long compiling one program may take, and then making machine code of one kernel",
    )
    compile_memory_bytes: int = _setting(
        kinds.memory(1 << 29, 1 << 40),
        "4 GiB",
        "addresses that a compile worker may have, and so may a CPU device's process for machine "
        "code; the compiler itself needs some 0.5 GiB",
    )
    compile_workers: int = _setting(
        kinds.integer(1, 64),
        "2",
        "programs of different users that are compiled at once; each user has one at a time, so "
        "that slow programs of one do not hold up another's",
    )
    max_program_bytes: int = _setting(
        kinds.memory(1 << 16, 1 << 26),
        "2 MiB",
        "the largest program, as PTX after the rewriting: machine code is made of it on the device",
    )
    memory: int | Fraction = _setting(
        kinds.memory(of="the machine's memory"), "50%", "for arrays, on each device"
    )
    user_memory: int | Fraction = _setting(
        kinds.memory(of="`memory`"), "100%", "for the arrays of one user, on each device"
    )
    session_memory: int | Fraction = _setting(
        kinds.memory(of="`memory`"), "100%", "for the arrays of one session, on each device"
    )
    max_connections: int = _setting(
        kinds.integer(1, 100_000), "1024", "clients that may be connected at once"
    )
    max_user_connections: int = _setting(
        kinds.integer(1, 100_000), "768", "clients of one user that may be connected at once"
    )
    max_jobs_per_session: int = _setting(
        kinds.integer(1, 1_000_000), "10000", "jobs of one session that have not ended"
    )
    max_jobs_per_user: int = _setting(
        kinds.integer(1, 10_000_000), "40000", "jobs of one user that have not ended"
    )
    session_host_memory: int = _setting(
        kinds.memory(1 << 20, 1 << 40),
        "256 MiB",
        "what the daemon keeps in its own memory for one session: queued launches, programs, "
        "requests, messages that the client does not read or does not finish",
    )
    user_host_memory: int = _setting(
        kinds.memory(1 << 20, 1 << 40), "1 GiB", "the same for all sessions of one user"
    )
    max_message_bytes: int = _setting(
        kinds.memory(1 << 16, 1 << 30), "64 MiB", "the largest message from a client"
    )
    history: int = _setting(
        kinds.integer(0, 1_000_000), "1000", "ended jobs and events that `gpuctl` can look back at"
    )
    log_level: str = _setting(
        kinds.choice("debug", "info", "warning", "error"),
        "info",
        "the least that is logged: debug, info, warning or error",
    )
    log_format: str = _setting(
        kinds.choice("text", "json"), "text", "lines for people, or a JSON object on each"
    )
    event_log: Path | None = _setting(
        kinds.location(),
        None,
        "a file that gets every event of the scheduler, for `gpud replay`; by default none",
    )
    cache_dir: Path | None = _setting(
        kinds.location(), None, "the folder of compiled programs; by default $XDG_CACHE_HOME/gpud"
    )
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def origin(self, name: str) -> str:
        """Returns where a setting's value is from, for people, by field name or key."""
        name = next((one.name for one in SETTINGS if name in (one.name, one.key)), name)
        return self.origins.get(name, "the default")

    def memory_bytes(self, machine_bytes: int) -> int:
        """Returns `memory` in bytes, for a machine, or a GPU, with that much."""
        return _part(self.memory, machine_bytes)

    def user_memory_bytes(self, memory_bytes: int) -> int:
        """Returns `user_memory` in bytes, at most what the device has."""
        return min(memory_bytes, _part(self.user_memory, memory_bytes))

    def session_memory_bytes(self, memory_bytes: int) -> int:
        """Returns `session_memory` in bytes, at most what the device has."""
        return min(memory_bytes, _part(self.session_memory, memory_bytes))

    def floor(self, sms: int) -> Fraction:
        """Returns `offline_floor` for a device with so many SMs, 0 or more."""
        if not self.offline_floor.rstrip("% ").strip("0."):
            return Fraction(0)
        return share(self.offline_floor, capacity=sms)


def _part(amount: int | Fraction, total: int) -> int:
    return amount if isinstance(amount, int) else int(amount * total)


def _table() -> tuple[Setting, ...]:
    rows = []
    for one in dataclasses.fields(Config):
        about = one.metadata
        if not about:
            continue
        key = one.name.removesuffix(_UNIT)
        rows.append(
            Setting(
                one.name,
                key,
                f"GPUD_{key.upper()}",
                about["flag"] or f"--{key.replace('_', '-')}",
                isinstance(one.default, tuple),
                about["kind"],
                about["default"],
                about["meaning"],
            )
        )
    return tuple(rows)


SETTINGS: tuple[Setting, ...] = _table()
"""Every setting, in the order of the reference page."""
