"""All data that the parts of the server share. Each part is given what it needs of it."""

from __future__ import annotations

import asyncio
import time

from gpud.config import Config
from gpud.server.ipc.file_descriptors import DescriptorBudget
from gpud.server.state.arenas import Arenas
from gpud.server.state.job_history import JobHistory
from gpud.server.state.job_tables import ActiveJobs
from gpud.server.state.modules import Modules
from gpud.server.state.quota import Users
from gpud.server.state.sessions import Sessions
from gpud.server.workloads.workloads import Workloads
from gpud.telemetry.records import Records

__all__ = ["SharedState"]


class SharedState:
    """The daemon's data.

    Attributes:
        config: the settings that are in force.
        next_config: those that were read last; they differ where a restart is needed.
        started_ns: when the daemon was started, monotonic.
        descriptors: how the open files are used.
        records: the history of events, allocations and jobs.
        arenas: the memory of sessions' arrays.
        workloads: programs that take turns with the devices' memory.
        users: the counts and quotas of each user.
        modules: all that hosts may have loaded, by number.
        jobs: those that have not ended, by id.
        history: those that have.
        sessions: by number; those whose client has gone stay until their jobs have ended.
    """

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.config = self.next_config = config
        self.started_ns = time.monotonic_ns()
        self.descriptors = DescriptorBudget()
        self.records = Records(
            epoch_ns=time.time_ns() - time.monotonic_ns(), history=config.history
        )
        self.arenas = Arenas(loop, self.descriptors)
        self.workloads = Workloads(loop, self.arenas, self.records)
        self.users = Users(config)
        self.modules = Modules()
        self.jobs = ActiveJobs()
        self.history = JobHistory(self.records, config, loop)
        self.sessions = Sessions(self.users, self.arenas, self.history)

    def change_config(self, config: Config) -> None:
        """Put other settings in force, as far as they are for what this has."""
        self.config = config
        self.users.change_config(config)
