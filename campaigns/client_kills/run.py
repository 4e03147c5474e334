"""Clients killed at random times under load: the effect on other clients, and what is left behind.

    python -m campaigns.run client_kills
    python -m campaigns.run lane_kills      # only clients that have a lane

1,000 clients of one daemon are killed with SIGKILL, four at once, each in one of the states of
`campaigns.client_kills.clients`: half-way through a frame, compiling, with running, queued and
blocked jobs, not reading ... Meanwhile two clients submit jobs that add 1 to every number of an
array, and check after each that every number has grown by exactly 1: no task block lost, none run
twice. After each round the daemon is polled until nothing of the killed clients is left (sessions,
connections, memory, jobs); that time, from the last kill on, is printed. It includes the time that
the operating system takes to end the clients, which is printed too, the rest of a running task
block, some 0.1 ms, and the wait for a processor on a busy machine.

Then as many connections are opened as the limit of open files allows, 10,000 at most, and one more,
which must be refused with a precise error; they open sessions, are counted, and closed at once.

At the end of the first part the descriptors, processes and memory of the daemon and its device host
are compared with those after the first tenth, when caches are warm.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpud_client as gc
from campaigns.client_kills.clients import DEATHS
from campaigns.frame import Campaign, Figures, Plan, together
from campaigns.fuzz.neighbour import Neighbour
from gpud.demo.metrics import percentile
from tests.support.processes import Sample, samples
from tests.support.raw_client import Raw

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 4
CONNECTIONS = 10_000
AIM_MS = 50.0
_LATEST_S = 60.0  # by when everything must be freed
_MAY_GROW_MIB = {"front": 48, "host": 96}  # filling buffers, compiled programs, the allocator


def measure(device: str, kills: int, seed: int, names: Sequence[str] = ()) -> dict[str, Any]:
    """All figures; see `report`. Clients die in the states named, or in any."""
    with ExitStack() as stack:
        gpu = stack.enter_context(gc.local(device, log_level="warning", grace="30 s"))
        survivors = [stack.enter_context(Neighbour(gpu.path, pause_s=0)) for _ in range(2)]
        killer = stack.enter_context(Killer(gpu.path))
        front = int(gpu.query("status")["pid"])
        back_ms: list[float] = []
        reaped_ms: list[float] = []
        deaths: dict[str, int] = {}
        refused = 0
        warm: dict[str, Any] = {}
        for count in range(0, kills, AT_ONCE):
            if not warm and count >= kills // 10:
                warm = settled(front)
            about = killer.kill(seed * 1_000_003 + count, min(AT_ONCE, kills - count), *names)
            refused += about["others"]
            for death in about["deaths"]:
                deaths[death] = deaths.get(death, 0) + 1
            reaped_ms.append((about["reaped_ns"] - about["killed_ns"]) / 1e6)
            back_ms.append(until_back(gpu, about["killed_ns"], 1 + len(survivors)))
        cold = settled(front, warm)
        ends = [survivor.end() for survivor in survivors]
        status = gpu.query("status")
    wrong = [text for end in ends for text in end["wrong"]]
    if status["devices"][0]["restarts"]:
        wrong.append(f"the device host was started again: {status['devices'][0]}")
    return {
        "aims": {"back_ms_p99": AIM_MS},
        "kills": kills,
        "at_once": AT_ONCE,
        "seed": seed,
        "deaths": dict(sorted(deaths.items())),
        "ended_before_they_were_killed": refused,
        "survivors_jobs": [end["jobs"] for end in ends],
        "wrong": wrong[:20],
        "back_ms": _percentiles(back_ms),
        "reaped_ms": _percentiles(reaped_ms),
        "within_aim": round(sum(one <= AIM_MS for one in back_ms) / len(back_ms), 4),
        "before": warm,
        "after": cold,
        "leaks": leaks(warm, cold),
    }


def _percentiles(times: list[float]) -> dict[str, float]:
    return {f"p{percent}": round(percentile(times, percent), 2) for percent in (50, 99, 100)}


def connections(device: str, wanted: int) -> dict[str, Any]:
    """Open many connections, and one too many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - 512)
    limits: dict[str, Any] = {"max_connections": count, "max_user_connections": count}
    clients: list[Raw] = []
    with gc.local(device, log_level="warning", **limits) as gpu:
        try:
            front = int(gpu.query("status")["pid"])
            before = usage(front)
            began = time.monotonic()
            while len(clients) < count - 1:  # besides the one that queries
                clients.append(Raw(str(gpu.path)))
                clients[-1].hello()
            opened_s = time.monotonic() - began
            used = usage(front)
            refusal = ""
            try:
                clients.append(Raw(str(gpu.path)))
                clients[-1].hello()
            except (RuntimeError, OSError) as error:
                refusal = str(error)
        finally:
            began_ns = time.monotonic_ns()
            for client in clients:
                client.close()
        closed_s = until_back(gpu, began_ns, 1) / 1e3
        after = usage(front)
    grown = used["private_mib"]["front"] - before["private_mib"]["front"]
    return {
        "connections": count,
        "seconds_to_open": round(opened_s, 2),
        "kib_of_a_session": round(1024 * grown / count, 1),
        "one_more": refusal,
        "seconds_to_close": round(closed_s, 2),
        "descriptors": [one["descriptors"]["front"] for one in (before, used, after)],
    }


class Killer:
    """The process that forks and kills."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "campaigns.client_kills.clients", path],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def kill(self, seed: int, count: int, *names: str) -> dict[str, Any]:
        """Run a round; see `campaigns.client_kills.clients`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([seed, count, *names]) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def until_back(gpu: gc.Session, killed_ns: int, sessions: int, pause_s: float = 0.0005) -> float:
    """Milliseconds from the kill until the daemon has freed everything of the killed clients."""
    while True:
        status = gpu.query("status")
        now_ns = time.monotonic_ns()
        if status["sessions"] == status["clients"] == sessions:
            return (now_ns - killed_ns) / 1e6
        if now_ns - killed_ns > _LATEST_S * 1e9:
            raise TimeoutError(f"not back after {_LATEST_S:g} s: {status}")
        time.sleep(pause_s)


# -- what is left ----------------------------------------------------------------------------------


def settled(front: int, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `usage` of the daemon, once it does not change any more.

    With ``before`` once nothing has grown: hosts drop a session shortly after the front does.
    """
    found = usage(front)
    for _ in range(300):
        time.sleep(0.1)
        last, found = found, usage(front)
        if not leaks(before or last, found) and last["descriptors"] == found["descriptors"]:
            break
    return found


def usage(front: int) -> dict[str, Any]:
    """Return processes, descriptors and memory of the daemon and its children, by role."""
    roles: dict[str, list[Sample]] = {"front": [], "host": [], "worker": []}
    for one in samples(front):
        if one.role != "native":
            roles.get(one.role, roles["worker"]).append(one)
    return {
        "processes": sum(map(len, roles.values())),
        "descriptors": {
            role: sum(one.descriptors for one in those) for role, those in roles.items()
        },
        "private_mib": {
            role: round(sum(one.private_bytes for one in those) / 2**20, 1)
            for role, those in roles.items()
        },
        "mapped": sum(mapped_files(one.pid) for one in roles["host"]),
    }


def mapped_files(pid: int) -> int:
    """Return how many memory files a device host has mapped: arenas and rings of lanes."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:gpud-")


def leaks(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what has grown but should not have.

    A second compile process may have been started; it stays. So does the host's native compile
    process, to which the host has a socket. Memory may grow by records of ended jobs, compiled
    programs and the allocator's overhead.
    """
    found = []
    if after["mapped"] > before["mapped"]:
        found.append(f"{after['mapped'] - before['mapped']} memory files more in the host")
    if after["processes"] > before["processes"] + 1:
        found.append(f"{after['processes'] - before['processes']} processes more")
    for role in ("front", "host"):
        more = after["descriptors"][role] - before["descriptors"][role]
        if more > (4 if role == "front" else 1):
            found.append(f"{more} descriptors more in the {role}")
        grown = after["private_mib"][role] - before["private_mib"][role]
        if grown > _MAY_GROW_MIB[role]:
            found.append(f"{grown:.0f} MiB more in the {role}")
    return found


def report(found: dict[str, Any]) -> None:
    """Print the figures."""
    back, reaped = found["back_ms"], found["reaped_ms"]
    before, after = found["before"], found["after"]
    rows = {
        "clients killed, in how many ways": f"{found['kills']}, {len(found['deaths'])}",
        "jobs of the survivors, each checked": " + ".join(map(str, found["survivors_jobs"])),
        "lost, doubled or failed": str(len(found["wrong"])),
        "until nothing of them is left, p50, p99, most": f"{back['p50']} ms, {back['p99']} ms, "
        f"{back['p100']} ms  (aim {AIM_MS:g} ms)",
        "of it until the kernel has ended them": f"{reaped['p50']} ms, {reaped['p99']} ms, "
        f"{reaped['p100']} ms",
        f"rounds within {AIM_MS:g} ms": f"{found['within_aim']:.1%}",
    }
    for role in ("front", "host"):
        rows[f"descriptors of the {role}"] = (
            f"{before['descriptors'][role]} -> {after['descriptors'][role]}"
        )
        rows[f"private memory of the {role}"] = (
            f"{before['private_mib'][role]} -> {after['private_mib'][role]} MiB"
        )
    many = found.get("connections")
    if many:
        rows["connections at once"] = (
            f"{many['connections']:,}, opened in {many['seconds_to_open']} s, closed in "
            f"{many['seconds_to_close']} s, {many['kib_of_a_session']} KiB each"
        )
        rows["one more is told"] = many["one_more"][:70]
    for name, value in rows.items():
        print(f"{name:<52}{value}")


def added(past: Figures, found: Figures) -> Figures:
    """Return the figures of two runs as those of one; of times the worse."""
    both = together(
        past,
        found,
        sums=("kills", "ended_before_they_were_killed"),
        counts=("deaths",),
        worst=("back_ms", "reaped_ms"),
        joined=("survivors_jobs",),
    )
    both["within_aim"] = min(past["within_aim"], found["within_aim"])
    return both


def _all_ways(plan: Plan) -> Figures:
    found = measure(plan.device, plan.count, plan.seed)
    found["connections"] = connections(plan.device, 500 if plan.short else CONNECTIONS)
    return found


def _wrong(found: Figures) -> list[str]:
    return [*found["wrong"], *found["leaks"]]


CLIENT_KILLS = Campaign(
    "client_kills",
    "Clients killed at random times under load",
    unit="kills",
    count=1000,
    few=60,
    measure=_all_ways,
    report=report,
    wrong=_wrong,
    add=added,
    seed=5,
)

LANE_KILLS = replace(
    CLIENT_KILLS,
    name="lane_kills",
    does="Clients killed at random times while they have a lane",
    measure=lambda plan: measure(
        plan.device, plan.count, plan.seed, [one for one in DEATHS if "lane" in one]
    ),
)
