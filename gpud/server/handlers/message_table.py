"""Which handler each message of a client goes to."""

from __future__ import annotations

from gpud.server.handlers.administration import Administration
from gpud.server.handlers.configuration import Configuration
from gpud.server.handlers.connection import Handlers
from gpud.server.handlers.followers import Followers
from gpud.server.handlers.history import HistoryRequests
from gpud.server.handlers.jobs import JobRequests
from gpud.server.handlers.lanes import LaneRequests
from gpud.server.handlers.memory import MemoryRequests
from gpud.server.handlers.programs import ProgramRequests
from gpud.server.handlers.queries import Queries
from gpud.server.handlers.submission import Submission
from gpud.server.handlers.variables import VariableRequests
from gpud.server.handlers.workloads import WorkloadRequests
from gpud.wire import messages as wm

__all__ = ["message_table"]


def message_table(
    submission: Submission,
    programs: ProgramRequests,
    variables: VariableRequests,
    memory: MemoryRequests,
    jobs: JobRequests,
    queries: Queries,
    followers: Followers,
    history: HistoryRequests,
    administration: Administration,
    workloads: WorkloadRequests,
    configuration: Configuration,
    lanes: LaneRequests,
) -> Handlers:
    """Return the handlers by message; `Hello` has none, as it opens the session."""
    return {
        wm.Submit: submission.submit,
        wm.Resume: submission.resume,
        wm.StreamFailure: submission.stream_failure,
        wm.Compile: programs.compile_program,
        wm.Unload: programs.unload,
        wm.Measure: programs.measure,
        wm.ReadSymbol: variables.read,
        wm.WriteSymbol: variables.write,
        wm.Allocate: memory.allocate,
        wm.Free: memory.free,
        wm.Upload: memory.upload,
        wm.Download: memory.download,
        wm.ExportArray: memory.export,
        wm.Resize: jobs.resize,
        wm.Cancel: jobs.cancel,
        wm.Describe: jobs.describe,
        wm.Why: jobs.why,
        wm.Query: queries.query,
        wm.Follow: followers.follow,
        wm.AskHistory: history.ask,
        wm.Pause: administration.pause,
        wm.Drain: administration.drain,
        wm.OpenLane: lanes.open,
        wm.PrepareLaunch: lanes.prepare,
        wm.CancelLaunch: lanes.cancel,
        wm.CloseLane: lanes.close,
        wm.OpenWorkload: workloads.open,
        wm.BeginIteration: workloads.begin,
        wm.EndIteration: workloads.end_iteration,
        wm.GrowWorkload: workloads.grow,
        wm.FitWorkload: workloads.fit,
        wm.RegionMoved: workloads.region_moved,
        wm.CloseWorkload: workloads.end,
        wm.SetSetting: configuration.set,
        wm.Reload: configuration.reload,
    }
