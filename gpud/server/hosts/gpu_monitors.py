"""The monitors of the devices that are GPUs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

from gpud.server.hosts.gpu_monitor import GpuMonitor
from gpud.server.state.device_status import DeviceStatus
from gpud.telemetry.records import Records

__all__ = ["GpuMonitors"]

_LOG = logging.getLogger(__name__)


class GpuMonitors(dict[int, GpuMonitor]):
    """Readers of GPU metrics, by the device's index.

    Args:
        loop: the event loop.
        records: gets the errors that the driver reports.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, records: Records) -> None:
        super().__init__()
        self._loop = loop
        self._records = records

    def watch(self, devices: Iterable[DeviceStatus]) -> None:
        """Start to monitor those of ``devices`` that are GPUs."""
        for device in devices:
            if device.info is not None and device.info.uuid:
                on_xid = partial(self._xid, device.index)
                self[device.index] = GpuMonitor(self._loop, device.info.uuid, on_xid)

    def poll(self) -> None:
        """Start a reading of each; called once a second."""
        for monitor in self.values():
            monitor.poll()

    def close(self) -> None:
        """Start no more readings."""
        for monitor in self.values():
            monitor.close()

    def _xid(self, index: int, number: int) -> None:
        _LOG.warning("device %d: the driver reports Xid %d; see NVIDIA's Xid Errors", index, number)
        self._records.add_event(
            time.monotonic_ns(), "gpu-error", None, ("device", index), ("xid", number)
        )
