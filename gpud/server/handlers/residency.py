"""Which of a session's modules its device's host has loaded: those that were used last.

Problem: programs that compile as they go make thousands of modules and unload none. A module costs
the front some KiB, which its session's quota counts, and the host a parsed program.

Approach: of each session the host has at most `MOST_LOADED` modules. The one whose last use is the
longest ago is unloaded there when another is used, and loaded again when it is needed: the registry
(`gpud.server.hosts.resources`) does that for whatever a host does not have. Its machine code is in
the cache.

Properties:
    nothing_lost: a module that has variables of its own on the host, or jobs or requests that have
        not ended, stays. Lanes keep the kernels of their launch sites themselves.
"""

from __future__ import annotations

from gpud.server.hosts.devices import Devices
from gpud.server.state.modules import Module
from gpud.server.state.session import Session

__all__ = ["MOST_LOADED", "LoadedModules"]

MOST_LOADED = 1024


class LoadedModules:
    """Keeps the modules of each session that its hosts have loaded few.

    Args:
        devices: by index.
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def use(self, session: Session, module: Module) -> None:
        """Note that a module is used now, and unload others if there are too many."""
        loaded = session.loaded
        loaded[module] = None
        loaded.move_to_end(module)
        if len(loaded) > MOST_LOADED:
            self._unload_oldest(session)

    def _unload_oldest(self, session: Session) -> None:
        busy = {module for job in session.jobs.values() for module, _ in job.sequence.needs}
        for module in session.loaded:
            if not (module.pending or module.variable_bytes or module in busy):
                session.forget_loaded(module)
                self._devices[module.device].evict(module)
                return
