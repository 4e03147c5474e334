"""Rows about devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from gpud.core.device import DeviceRecord
from gpud.server.handlers.answers import Steps
from gpud.server.handlers.workload_rows import WorkloadRows
from gpud.server.hosts.device import Device
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.gpu_monitors import GpuMonitors
from gpud.server.state.arenas import Arenas
from gpud.server.state.job_tables import ActiveJobs

__all__ = ["DeviceLoad", "DeviceRows"]

_LOOKS_AT_ONCE = 32  # jobs


class DeviceLoad:
    """How many jobs a device has, and how much of it they occupy."""

    def __init__(self) -> None:
        self.jobs = self.online = 0
        self.allocated = Fraction(0)


class DeviceRows:
    """Makes rows about devices.

    Args:
        devices: by index.
        jobs: those that have not ended.
        arenas: the memory of sessions' arrays.
        monitors: readers of GPU metrics.
        records: the scheduler's devices, by index.
        offline_floor: returns what offline jobs keep of so many SMs.
        workloads: makes rows about workloads.
    """

    def __init__(
        self,
        devices: Devices,
        jobs: ActiveJobs,
        arenas: Arenas,
        monitors: GpuMonitors,
        records: Mapping[int, DeviceRecord],
        offline_floor: Callable[[int], Fraction],
        workloads: WorkloadRows,
    ) -> None:
        self._workloads = workloads
        self._devices = devices
        self._jobs = jobs
        self._arenas = arenas
        self._monitors = monitors
        self._records = records
        self._offline_floor = offline_floor

    def loads(self) -> Steps[tuple[Counter[str], dict[int, DeviceLoad]]]:
        """Count the jobs in each state, and the load of each device."""
        states: Counter[str] = Counter()
        loads = {device.index: DeviceLoad() for device in self._devices}
        for index, job in enumerate(list(self._jobs.values())):
            if not index % _LOOKS_AT_ONCE:
                yield
            if job.state is not None:
                continue  # ended meanwhile
            states[job.present_state] += 1
            load = loads[job.device]
            load.jobs += 1
            load.online += job.online
            if (
                job.record is not None and job.record.alloc
            ):  # few jobs have an allocation, however many wait
                load.allocated += job.allocation
        return states, loads

    def rows(self, loads: dict[int, DeviceLoad]) -> list[dict[str, Any]]:
        """Return every device with its load and its metrics."""
        return [self.row(device, loads[device.index]) for device in self._devices]

    def description(self, device: Device) -> dict[str, Any]:
        """Return a device as described to every client."""
        info = device.info
        online = info.sms - self._offline_floor(info.sms) if info else 0
        return {
            "index": device.index,
            "spec": device.spec,
            "name": info.name if info else device.spec,
            "kind": info.kind if info else device.spec.partition(":")[0],
            "sms": info.sms if info else 0,
            "memory_bytes": self._arenas.capacity_bytes(device.index),
            "uuid": info.uuid if info else "",
            "capability": info.capability if info else 0,
            "arrays": info.arrays if info else "shared",
            "online_sms": str(online),
            "exclusive_step": info.partition_step if info else 0,
            "state": device.state,
        }

    def row(self, device: Device, load: DeviceLoad) -> dict[str, Any]:
        """Return a device with its load and its metrics."""
        down = device.state != "ready" and device.failures
        monitor = self._monitors.get(device.index)
        return {
            **self.description(device),
            **({} if monitor is None else monitor.metrics()),
            "pid": device.pid,
            "restarts": device.restarts,
            "error": device.last_failure if down else None,
            "paused": self.pause_of(device.index),
            "allocated": str(load.allocated),
            "allocated_sms": float(load.allocated),
            "reserved_sms": self._reserved_sms(device),
            "jobs": load.jobs,
            "online_jobs": load.online,
            "queued_as": dict(device.ways) or None,
            "memory_used_bytes": self._arenas.used_bytes(device.index),
            "turns": self._workloads.turn(device.index),
        }

    def _reserved_sms(self, device: Device) -> float:
        """Return the SMs that nobody else can reserve: of online jobs, and of lanes that lend."""
        record = self._records.get(device.index)
        if record is None or device.info is None or not record.capacity:
            return 0.0
        reserved = record.online_allocated + record.promised
        return device.info.sms * reserved / record.capacity

    def pause_of(self, index: int) -> dict[str, Any] | None:
        """Return who has paused a device, since when, and whether with ``now``; None: nobody."""
        record = self._records.get(index)
        if record is None or record.pause is None:
            return None
        return {"by": record.pause.by, "since": record.pause.since, "now": record.pause.now}
