"""Rows about workloads, and about the zones of devices."""

from __future__ import annotations

import time
from typing import Any

from gpud.core.workloads.turns import Phase
from gpud.core.workloads.window import Place
from gpud.server.state.access import Peer, may_manage, user_name
from gpud.server.workloads.workload import Workload, workload_name
from gpud.server.workloads.workloads import Workloads

__all__ = ["WorkloadRows"]


class WorkloadRows:
    """Makes rows about workloads.

    Args:
        workloads: all of them.
    """

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads

    def rows(self, peer: Peer) -> list[dict[str, Any]]:
        """Return a map for each workload that a peer may see, the oldest first."""
        now_ns = time.monotonic_ns()
        managed = (one for one in self._workloads.all.values() if may_manage(peer, one.owner.uid))
        return [self._row(one, now_ns) for one in managed]

    def zones(self) -> list[dict[str, Any]]:
        """Return a map for each device: its zones, and who has the turn."""
        devices, now_ns = [], time.monotonic_ns()
        for index in range(self._workloads.devices):
            zones, turns = (
                self._workloads.manager.zones(index),
                self._workloads.manager.turns(index),
            )
            devices.append(
                {
                    "device": index,
                    "size_bytes": zones.size,
                    "persistent_bytes": zones.persistent_bytes,
                    "temporary_bytes": zones.temporary_bytes,
                    "workloads": len(zones.regions) + len(zones.movable),
                    "turn": None if turns.holder is None else workload_name(turns.holder),
                    "turn_s": None if turns.holder is None else (now_ns - turns.turn_ns) / 1e9,
                    "regions": [
                        {
                            "workload": workload_name(region.workload),
                            "start": region.start,
                            "size_bytes": region.size,
                            "offset_bytes": region.offset,
                        }
                        for region in zones.present
                    ],
                    "common_start": zones.window.start,
                    "common_bytes": zones.window.size,
                    "away": {
                        workload_name(number): zones.window[number].place.value
                        for number in zones.window
                        if zones.window[number].place is not Place.HERE
                    },
                }
            )
        return devices

    def turn(self, device: int) -> dict[str, Any] | None:
        """Return who takes turns on a device, in short; None: nobody."""
        manager = self._workloads.manager
        zones, turns = manager.zones(device), manager.turns(device)
        if not turns.order:
            return None
        since_ns = time.monotonic_ns() - turns.turn_ns
        return {
            "workloads": len(turns.order),
            "waiting": len(turns.waiting),
            "turn": None if turns.holder is None else workload_name(turns.holder),
            "turn_s": None if turns.holder is None else since_ns / 1e9,
            "persistent_bytes": zones.persistent_bytes,
            "temporary_bytes": zones.temporary_bytes,
        }

    def moved(self) -> dict[str, Any]:
        """Return what movable regions have in host memory, and how fast they move."""
        movers = self._workloads.mover, self._workloads.programs
        return {
            "away_bytes": sum(one.away_bytes for one in movers),
            "most_bytes": self._workloads.manager.host_bytes,
            "moved_bytes": sum(one.moved_bytes for one in movers),
            "moving_s": sum(one.moving_ns for one in movers) / 1e9,
        }

    def _row(self, workload: Workload, now_ns: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": workload_name(workload.number),
            "workload": workload.number,
            "session": workload.owner.number,
            "user": user_name(workload.owner.uid),
            "program": workload.owner.program,
            "pid": workload.owner.peer.pid,
            "device": workload.device,
            "state": self._state(workload),
            "persistent_bytes": None if workload.need is None else workload.need.persistent,
            "offset_bytes": None if workload.need is None else workload.need.offset,
            "temporary_bytes": None if workload.need is None else workload.need.temporary,
            "weight": workload.weight,
            "iterations": workload.iterations,
            "turns": workload.turns,
            "age_s": (now_ns - workload.opened_ns) / 1e9,
            "waited_s": workload.waited_ns / 1e9,
            "turn_s": None,
            "reason": workload.reason,
            "waits_for_turn": self._waits(workload),
            "movable": workload.movable,
            "mapped": workload.mapped,
            "place": "on the device",
        }
        if workload.device is not None:
            region = self._workloads.manager.zones(workload.device).region(workload.number)
            assert region is not None
            row["start"] = region.start
            window = self._workloads.manager.zones(workload.device).window
            if workload.movable:
                row["place"] = window[workload.number].place.value
            row["persistent_bytes"], row["offset_bytes"] = region.size, region.offset
            turns = self._workloads.manager.turns(workload.device)
            if turns.holder == workload.number:
                row["turn_s"] = (now_ns - turns.turn_ns) / 1e9
        return row

    def _waits(self, workload: Workload) -> bool:
        if workload.device is None:
            return False
        return workload.number in self._workloads.manager.turns(workload.device).waiting

    def _state(self, workload: Workload) -> str:
        if workload.device is None:
            return "waiting for memory"
        if workload.ending is not None:
            return "ending"
        turns = self._workloads.manager.turns(workload.device)
        if workload.standing and len(turns.order) == 1:
            return "alone"
        if turns.holder == workload.number and turns.phase is not Phase.CLEARING:
            return str(turns.phase.value)
        return "waiting for its turn" if self._waits(workload) else "idle"
