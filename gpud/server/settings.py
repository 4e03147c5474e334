"""Derives the settings of the daemon's parts from its configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

from gpud.config import Config
from gpud.core.scheduler import Scheduler
from gpud.core.settings import Settings
from gpud.core.workloads.turns import TurnSettings
from gpud.device.spec import parse_device
from gpud.errors import InvalidArgument, MissingDependency
from gpud.processes.culprits import MOST_TRIES
from gpud.server.hosts.gpu_detection import check_gpu, has_gpu
from gpud.server.hosts.interface import HostLimits
from gpud.server.state.arenas import MemoryLimits
from gpud.server.state.device_status import DeviceStatus

__all__ = [
    "check",
    "compile_arguments",
    "device_specs",
    "host_arguments",
    "host_limits",
    "memory_limits",
    "moved_memory",
    "scheduler_settings",
    "turn_settings",
]

_AUTO = "auto"
_WITHOUT_CAPS = ("fifo", "equal")
_GPU = "cuda:0"
_LLVM = "llvmlite"
_COMPILE_MARGIN_S = 10.0


def scheduler_settings(config: Config, *, validate: bool = False) -> Settings:
    """Return the scheduler's settings.

    Raises:
        InvalidArgument: a value is out of range, or the policy does not keep what users may have.
    """
    terms = [*config.users.values(), *config.groups.values()]
    if config.policy in _WITHOUT_CAPS and any(one.reserve or one.hold for one in terms):
        raise InvalidArgument(
            f"the policy {config.policy!r} does not keep what users may reserve and hold "
            f"({config.origin('users')}); use policy 'reservations' or 'arrival', or take reserve "
            "and hold out of users and groups"
        )
    return Settings(
        policy=config.policy,
        offline_floor=config.offline_floor,
        hold_ns=config.hold_ns,
        rebalance_hold_ns=config.rebalance_hold_ns,
        rebalance_limit=config.rebalance_limit,
        grace_ns=config.grace_ns,
        work_conserving=config.work_conserving,
        debug=validate,
    )


def turn_settings(config: Config) -> TurnSettings:
    """Return the settings of workloads' turns."""
    return TurnSettings(config.turn_slice_ns, config.turn_linger_ns, config.turn_overstay_ns)


def check(config: Config) -> None:
    """Check what no setting's type does: policy, devices, and what does not go together.

    Raises:
        InvalidArgument: something cannot be used.
    """
    Scheduler(scheduler_settings(config))
    device_specs(config, look=False)


def device_specs(config: Config, *, look: bool = True) -> list[str]:
    """Return the devices' full names; ``auto`` becomes a GPU if there is one. May take a second.

    Args:
        config: names the devices.
        look: whether to check that the GPUs exist, and LLVM for a CPU device.

    Raises:
        InvalidArgument: a name is not a device's, or there is no such GPU.
        MissingDependency: a device needs a library that is not installed.
    """
    texts = [text.strip() for text in config.devices]
    if look and _AUTO in texts and has_gpu():
        texts = [_GPU if text == _AUTO else text for text in texts]
    try:
        specs = [parse_device(text) for text in texts]
    except ValueError as error:
        raise InvalidArgument(f"--device: {error}") from None
    for spec in specs:
        if look and spec.kind == "cuda":
            check_gpu(spec.number)
        elif look and find_spec(_LLVM) is None:
            raise MissingDependency(_LLVM, extra="daemon")
    return [str(spec) for spec in specs]


def host_limits(config: Config) -> HostLimits:
    """Return the time limits of device hosts.

    For compilations it is more than the host's own limit on its compile process, so that the host
    normally ends that process itself.
    """
    compiling_s = config.compile_timeout_ns / 1e9
    return HostLimits(config.host_timeout_ns / 1e9, MOST_TRIES * compiling_s + _COMPILE_MARGIN_S)


def host_arguments(config: Config) -> tuple[str, ...]:
    """Return the arguments of a device host except its device."""
    return (
        "--compile-seconds",
        str(config.compile_timeout_ns / 1e9),
        "--compile-memory-bytes",
        str(config.compile_memory_bytes),
        "--lane-hold-seconds",
        str(config.lane_hold_ns / 1e9),
        *(() if config.cache_dir is None else ("--cache-dir", str(config.cache_dir))),
        *_dump_arguments(config),
    )


def compile_arguments(config: Config) -> tuple[str, ...]:
    """Return the arguments of a compile process."""
    return (
        "--confine",
        "--memory-bytes",
        str(config.compile_memory_bytes),
        "--program-bytes",
        str(config.max_program_bytes),
        *_dump_arguments(config),
    )


def _dump_arguments(config: Config) -> tuple[str, ...]:
    if config.dump is None:
        return ()
    return ("--dump", str(config.dump.absolute()), "--dump-kernels", ",".join(config.dump_kernels))


def moved_memory(config: Config, devices: Sequence[DeviceStatus]) -> int:
    """Return the most bytes of the machine's memory for regions that are not on their device."""
    infos = [device.info for device in devices if device.info is not None]
    known = [info.memory_bytes for info in infos if info.kind == "cpu"]
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return config.moved_memory_bytes(min([physical, *known]))


def memory_limits(config: Config, devices: Sequence[DeviceStatus]) -> MemoryLimits:
    """Return the limits on arrays for ``devices``, which are ready."""
    limits = MemoryLimits([], [], [])
    for device in devices:
        assert device.info is not None
        most = config.memory_bytes(device.info.memory_bytes, device.info.kind)
        limits.device.append(most)
        limits.user.append(config.user_memory_bytes(most))
        limits.session.append(config.session_memory_bytes(most))
    return limits
