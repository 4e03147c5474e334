"""The table of settings.

Each field of `Config` is a setting, declared once: its type, its default and its meaning. The key
in the file is the field's name without its unit; the environment variable is ``GPUD_`` and the key
in capitals; the flag is ``--`` and the key with hyphens.
"""

# ruff: noqa: RUF009  (`setting` returns a dataclass field, which is where its default belongs)

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from gpud.config import quantity_types as quantities
from gpud.config import setting_types as types
from gpud.config.setting_rows import Setting, rows_of, setting
from gpud.config.user_terms import UserTerms, user_table
from gpud.wire.socket_path import default_socket_path

__all__ = ["SETTINGS", "Config", "Setting", "Sources"]


class Sources(NamedTuple):
    """Where settings were read, to read them again.

    Attributes:
        flags: as given to `gpud.config.load`.
        environ: the environment.
        file: the file that was named; None: that of `gpud.config.config_file`.
    """

    flags: Mapping[str, Any]
    environ: Mapping[str, str]
    file: Path | None


def _default_history_file() -> Path | None:
    folder = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(folder, "history.sqlite") if folder else None


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings. `gpud.config.load` reads them; ``Config()`` has the defaults.

    Amounts of memory are ints (bytes) or Fractions (of another amount).
    """

    socket: Path = setting(
        types.socket_location(),
        None,
        "where clients connect; by default $XDG_RUNTIME_DIR/gpud/gpud.sock, where that is not set "
        "/run/gpud/gpud.sock for root and /tmp/gpud-UID/gpud.sock for others",
        make=default_socket_path,
    )
    socket_mode: int = setting(
        types.mode(), "0600", "who may connect; each user sees and manages only what is their own"
    )
    devices: tuple[str, ...] = setting(
        types.listed(types.word("a device: auto, cpu, cpu:SMS, cuda or cuda:N")),
        "auto",
        "the devices to serve, in this order: cpu, cpu:SMS, cuda, cuda:N, or auto, the first GPU "
        "or else the CPU",
        flag="--device",
    )
    policy: str = setting(
        types.word("the name of a scheduling policy"),
        "reservations",
        "how jobs share a device: reservations; arrival, the same except that offline jobs take "
        "nothing from each other; or, to compare with, fifo (run to completion) or equal (shares "
        "by weight alone; a job with a reservation is refused)",
    )
    work_conserving: bool = setting(
        types.switch(),
        "off",
        "whether on the CPU device a job may do more work than its quota while nobody else needs "
        "the time: for those who only compute",
    )
    rebalance_hold_ns: int = setting(
        quantities.duration("ms", most_s=60, least_ns=10**6),
        "100 ms",
        "how long offline jobs stay as they are before those with more than their part give some "
        "up for those with less: longer than a short job takes, and soon enough that nobody waits "
        "for it",
        live=True,
    )
    rebalance_limit: int = setting(
        types.integer(1, 100),
        "5",
        "how often a second a job gives up some of its share for other offline jobs, at most; a "
        "change costs about a launch, so that 5 of them cost less than 1 %",
        live=True,
    )
    turn_slice_ns: int = setting(
        quantities.duration("ms", most_s=3600, least_ns=10**6),
        "250 ms",
        "how long a workload of weight 1 keeps its turn with a device's temporary memory while "
        "others wait; an iteration that has begun ends in any case. To begin a turn costs some "
        "milliseconds: of 250 ms that is 2 %",
        live=True,
    )
    turn_linger_ns: int = setting(
        quantities.duration("ms", most_s=60),
        "2 ms",
        "how long a workload may take from one iteration to the next, or run nothing, before its "
        "turn ends, while others wait",
        live=True,
    )
    turn_overstay_ns: int = setting(
        quantities.duration("s", most_s=86_400, least_ns=10**6),
        "60 s",
        "how long an iteration may last beyond the time slice, while others wait, before the log "
        "and gpuctl events name its workload",
        live=True,
    )
    offline_floor: str = setting(
        quantities.amount(), "0", "what online jobs always leave to offline ones, on each device"
    )
    bounds_checks: bool = setting(
        types.switch(),
        "on",
        "whether every memory access of a kernel is checked, so that it cannot leave its session's "
        "arena; if off, a wrong index can change another session's arrays or crash the device host",
    )
    hold_ns: int = setting(
        quantities.duration("ms", most_s=60),
        "0 ms",
        "how long the share of an ended online job is kept for other online jobs, so that a burst "
        "of them does not resize the offline ones for each",
        live=True,
    )
    lane_hold_ns: int = setting(
        quantities.duration("ms", most_s=60, least_ns=100_000),
        "0.2 ms",
        "how long nothing must have come in a lane before it lends its share: longer than a "
        "program takes between two launches, and short beside its pauses",
    )
    grace_ns: int = setting(
        quantities.duration("s", most_s=3600, least_ns=10**7),
        "2 s",
        "how long the blocks of a job that is being ended may take to leave, before they are "
        "killed, or, where that is not possible, the device host is replaced",
        live=True,
    )
    host_timeout_ns: int = setting(
        quantities.duration("s", most_s=3600, least_ns=10**8),
        "30 s",
        "how long a device host may leave the daemon without an answer before it counts as hung "
        "and is replaced",
    )
    drain_timeout_ns: int = setting(
        quantities.duration("s", most_s=7 * 86400),
        "30 s",
        "how long jobs may run on after SIGTERM before they are cancelled",
        live=True,
    )
    compile_timeout_ns: int = setting(
        quantities.duration("s", most_s=3600, least_ns=10**8),
        "60 s",
        "how long the compilation of one program to PTX may take, and that of one kernel to "
        "machine code",
    )
    compile_memory_bytes: int = setting(
        quantities.memory(1 << 29, 1 << 40),
        "4 GiB",
        "address space of a compile process, and of a CPU device's process for machine code; the "
        "compiler itself needs some 0.5 GiB",
    )
    compile_processes: int = setting(
        types.integer(1, 64),
        "2",
        "programs of different users that are compiled at once; each user has one at a time, so "
        "that one user's slow programs do not delay another's",
    )
    max_program_bytes: int = setting(
        quantities.memory(1 << 16, 1 << 26),
        "2 MiB",
        "the largest program, as PTX: as it was sent, or as the compiler makes it of CUDA C++; "
        "what it becomes is in proportion",
    )
    memory: int | Fraction | None = setting(
        quantities.memory(1 << 12, of="the machine's or the GPU's memory"),
        None,
        "for arrays, on each device; by default 50% of the machine's memory on a CPU device, which "
        "leaves as much for processes, and 95% of a GPU's",
    )
    user_memory: int | Fraction = setting(
        quantities.memory(1 << 12, of="`memory`"),
        "100%",
        "for the arrays of one user, on each device",
    )
    session_memory: int | Fraction = setting(
        quantities.memory(1 << 12, of="`memory`"),
        "100%",
        "for the arrays of one session, on each device",
    )
    moved_memory: int | Fraction = setting(
        quantities.memory(least=0, of="the machine's memory"),
        "25%",
        "of the machine, for what movable workloads keep while it is not on their device; 0: "
        "nothing is moved",
    )
    max_connections: int = setting(
        types.integer(1, 100_000),
        "1024",
        "clients that may be connected at once",
        live=True,
    )
    max_user_connections: int = setting(
        types.integer(1, 100_000),
        "768",
        "clients of one user that may be connected at once",
        live=True,
    )
    max_jobs_per_session: int = setting(
        types.integer(1, 1_000_000), "10000", "jobs of one session that have not ended", live=True
    )
    max_jobs_per_user: int = setting(
        types.integer(1, 10_000_000),
        "40000",
        "jobs of one user that have not ended",
        live=True,
    )
    others: str = setting(
        types.choice("names", "sums"),
        "names",
        "what users are shown of what others hold: names, who holds how much; or sums, how much; "
        "never programs, kernels or jobs",
        live=True,
    )
    users: Mapping[str, UserTerms] = setting(
        user_table(),
        None,
        "what each user may have, by name or number: the most that the online jobs may `reserve` "
        "together on each device, that all jobs may `hold` together there, and that may `queue` "
        "(jobs that have not ended); and the user's `weight` beside other users with offline jobs. "
        "What is not said of a user is as for the first of the groups that the user is in and that "
        "says it, else as for the user `*`; by default not limited, and of weight 1",
        make=dict,
        live=True,
    )
    groups: Mapping[str, UserTerms] = setting(
        user_table(),
        None,
        "the same for each member of a group by itself, in this order; by default none",
        make=dict,
        live=True,
    )
    session_host_memory: int = setting(
        quantities.memory(1 << 20, 1 << 40),
        "256 MiB",
        "memory of the daemon itself for one session: queued launches, programs, requests, "
        "messages that the client has not read or not finished",
        live=True,
    )
    user_host_memory: int = setting(
        quantities.memory(1 << 20, 1 << 40),
        "1 GiB",
        "the same for all sessions of one user",
        live=True,
    )
    max_message_bytes: int = setting(
        quantities.memory(1 << 16, 1 << 30), "64 MiB", "the largest message from a client"
    )
    history: int = setting(
        types.integer(0, 1_000_000), "1000", "ended jobs that are kept in memory"
    )
    history_file: Path | None = setting(
        types.location(),
        None,
        "the file in which jobs that have ended are kept for `gpuctl history` and `gpuctl report`, "
        "across restarts; by default history.sqlite in $STATE_DIRECTORY, which systemd sets for a "
        "service, and without that none: then they show what is in memory",
        make=_default_history_file,
    )
    history_file_bytes: int = setting(
        quantities.memory(1 << 20, 1 << 40),
        "64 MiB",
        "the largest size of that file, some 200,000 jobs; then the oldest are deleted",
    )
    log_level: str = setting(
        types.choice("debug", "info", "warning", "error"),
        "info",
        "the least severe messages that are logged: debug, info, warning or error",
        live=True,
    )
    log_format: str = setting(
        types.choice("text", "json"), "text", "lines of text, or a JSON object on each line"
    )
    event_log: Path | None = setting(
        types.location(),
        None,
        "file to which every scheduler event is written, for `gpud replay`; by default none",
    )
    metrics_socket: Path | None = setting(
        types.location(),
        None,
        "Unix socket on which metrics are served over HTTP for Prometheus, readable by the "
        "daemon's user alone; by default none",
    )
    metrics_port: int = setting(
        types.integer(0, 65535),
        "0",
        "port of the loopback interface on which they are served to every user of the machine; 0: "
        "none",
    )
    cache_dir: Path | None = setting(
        types.location(),
        None,
        "the folder of compiled programs, by default $XDG_CACHE_HOME/gpud; machine code of the CPU "
        "device is kept beside it, in a folder whose name ends in -machine-code",
    )
    dump: Path | None = setting(
        types.location(),
        None,
        "the folder to which is written what is made of each program, by default none: the PTX "
        "after each stage, and the LLVM IR of the CPU device's kernels; both show the users' code",
    )
    dump_kernels: tuple[str, ...] = setting(
        types.listed(types.pattern("the name of a kernel in PTX")),
        "*",
        "the kernels for which `dump` writes files",
    )
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    sources: Sources | None = field(default=None, repr=False, compare=False)

    def origin(self, name: str) -> str:
        """Return where a setting's value comes from, human-readable, by field name or key."""
        name = next((one.name for one in SETTINGS if name in (one.name, one.key)), name)
        return self.origins.get(name, "the default")

    def memory_bytes(self, device_bytes: int, kind: str) -> int:
        """Return `memory` in bytes, at most ``device_bytes``, the machine's or the GPU's.

        Args:
            device_bytes: all memory that there is.
            kind: "cpu" or "cuda".
        """
        amount = _DEFAULT_MEMORY[kind] if self.memory is None else self.memory
        return min(device_bytes, _part(amount, device_bytes))

    def user_memory_bytes(self, memory_bytes: int) -> int:
        """Return `user_memory` in bytes, at most ``memory_bytes``, that of the device."""
        return min(memory_bytes, _part(self.user_memory, memory_bytes))

    def session_memory_bytes(self, memory_bytes: int) -> int:
        """Return `session_memory` in bytes, at most ``memory_bytes``, that of the device."""
        return min(memory_bytes, _part(self.session_memory, memory_bytes))

    def moved_memory_bytes(self, machine_bytes: int) -> int:
        """Return `moved_memory` in bytes, at most ``machine_bytes``, the machine's memory."""
        return min(machine_bytes, _part(self.moved_memory, machine_bytes))


_DEFAULT_MEMORY = {"cpu": Fraction(1, 2), "cuda": Fraction(95, 100)}


def _part(amount: int | Fraction, total: int) -> int:
    return amount if isinstance(amount, int) else int(amount * total)


SETTINGS: tuple[Setting, ...] = rows_of(Config)
"""All settings, in the order of the reference page."""
