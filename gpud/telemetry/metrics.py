"""The daemon's metrics: names, kinds, units and meanings in one table, and their exposition.

The values come from the answer to the query "status" and from `Totals`; the text is in the
OpenMetrics format (https://prometheus.io/docs/specs/om/open_metrics_spec/), as Prometheus reads it.

No metric has a user, a program or a kernel among its labels: whoever may read the endpoint learns
how busy the machine is, not who works on what. See `gpuctl report` for that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gpud.errors import MissingDependency

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

__all__ = ["METRICS", "Metric", "Totals", "exposition"]

_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_KINDS = ("online", "offline")


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: without the suffix that OpenMetrics adds to counters and histograms.
        kind: "gauge", "counter", "histogram" or "info".
        unit: as OpenMetrics names it, the end of the name; empty: a number of things.
        meaning: what it says.
        labels: their names.
        field: of a device's row in "status", for metrics of a device; empty for others.
        scale: what the field's value is multiplied with to be in the unit.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    field: str = ""
    scale: float = 1.0


def _of_device(
    name: str, unit: str, meaning: str, field: str, *, scale: float = 1.0, kind: str = "gauge"
) -> Metric:
    return Metric(name, kind, unit, meaning, ("device",), field, scale)


METRICS = (
    Metric("gpud", "info", "", "the daemon: its version and its scheduling policy"),
    Metric("gpud_uptime_seconds", "gauge", "seconds", "since the daemon was started"),
    Metric("gpud_draining", "gauge", "", "1: it takes no new jobs, because it ends"),
    Metric("gpud_clients", "gauge", "", "connections"),
    Metric(
        "gpud_orphaned_sessions", "gauge", "",
        "sessions whose process has been gone for a minute, while their connection is open",
    ),
    Metric(
        "gpud_event_loop_stalls", "counter", "",
        "callbacks of the daemon's event loop that took more than 50 ms: all clients waited",
    ),
    Metric(
        "gpud_event_loop_longest_stall_seconds", "gauge", "seconds", "the longest callback so far"
    ),
    Metric("gpud_jobs", "gauge", "", "jobs that have not ended", ("state",)),
    Metric("gpud_ended_jobs", "counter", "", "jobs that have ended", ("state",)),
    Metric(
        "gpud_capsm_seconds", "counter", "seconds",
        "what ended jobs had of the devices: SMs times seconds", ("kind",),
    ),
    Metric(
        "gpud_queued_seconds", "histogram", "seconds",
        "from a job's submission to its start", ("kind",),
    ),
    Metric("gpud_device", "info", "", "a device: its name and kind", ("device",)),
    Metric("gpud_device_ready", "gauge", "", "1: it runs jobs", ("device",)),
    Metric("gpud_device_paused", "gauge", "", "1: it starts none, see gpuctl pause", ("device",)),
    _of_device("gpud_device_sms", "", "SMs", "sms"),
    _of_device("gpud_device_allocated_sms", "", "SMs allocated to jobs, in CapSM", "allocated_sms"),
    _of_device("gpud_device_jobs", "", "jobs on the device that have not ended", "jobs"),
    _of_device("gpud_device_online_jobs", "", "of these with a reservation", "online_jobs"),
    _of_device("gpud_device_memory_bytes", "bytes", "memory for arrays", "memory_bytes"),
    _of_device("gpud_device_memory_used_bytes", "bytes", "used by arrays", "memory_used_bytes"),
    _of_device(
        "gpud_device_restarts", "", "times that its process was replaced", "restarts",
        kind="counter",
    ),
    _of_device(
        "gpud_gpu_utilisation_ratio", "ratio", "time in which a kernel ran, as NVML counts it",
        "gpu_utilisation_percent", scale=0.01,
    ),
    _of_device(
        "gpud_gpu_memory_used_bytes", "bytes", "memory of the GPU that all processes use",
        "gpu_memory_used_bytes",
    ),
    _of_device(
        "gpud_gpu_sm_clock_hertz", "hertz", "clock of the SMs", "gpu_sm_clock_mhz", scale=1e6
    ),
    _of_device("gpud_gpu_temperature_celsius", "celsius", "of the GPU", "gpu_temperature_c"),
    _of_device("gpud_gpu_power_watts", "watts", "drawn by the GPU", "gpu_power_w"),
    _of_device(
        "gpud_gpu_uncorrected_ecc_errors", "", "since the driver was loaded",
        "gpu_ecc_uncorrected", kind="counter",
    ),
    _of_device("gpud_gpu_last_xid", "", "number of the last Xid error; 0: none", "gpu_last_xid"),
)  # fmt: skip
"""Every metric, in the order in which they are exposed."""


class Totals:
    """Sums over the jobs that have ended since the start."""

    def __init__(self) -> None:
        self.capsm_seconds = dict.fromkeys(_KINDS, 0.0)
        self.queued_seconds = dict.fromkeys(_KINDS, 0.0)
        self.queued = {kind: [0] * (len(_BUCKETS_S) + 1) for kind in _KINDS}

    def add(self, online: bool, queued_s: float, capsm_seconds: float | None) -> None:
        """Count a job that has ended."""
        kind = "online" if online else "offline"
        self.queued[kind][bisect_left(_BUCKETS_S, queued_s)] += 1
        self.queued_seconds[kind] += queued_s
        self.capsm_seconds[kind] += capsm_seconds or 0.0


def exposition(status: Mapping[str, Any], totals: Totals) -> bytes:
    """Return the metrics as OpenMetrics text.

    Args:
        status: the answer to the query "status".
        totals: of the jobs that have ended.

    Raises:
        MissingDependency: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.openmetrics.exposition import generate_latest
    except ImportError as error:
        raise MissingDependency("prometheus-client", extra="daemon", cause=str(error)) from error

    class Collector:
        def collect(self) -> Iterator[Family]:
            return _families(status, totals)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text


def _families(status: Mapping[str, Any], totals: Totals) -> Iterator[Family]:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    makes = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
        "info": InfoMetricFamily,
    }
    devices = status["devices"]
    for metric in METRICS:
        unit = {} if metric.kind == "info" else {"unit": metric.unit}
        family = makes[metric.kind](metric.name, metric.meaning, labels=metric.labels, **unit)
        for labels, value in _values(metric, status, devices, totals):
            if metric.kind == "histogram":
                family.add_metric(labels, *value)
            else:
                family.add_metric(labels, value)
        if family.samples:
            yield family


def _values(
    metric: Metric, status: Mapping[str, Any], devices: list[Mapping[str, Any]], totals: Totals
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the labels and the value of each sample."""
    if metric.field:
        for row in devices:
            value = row.get(metric.field)
            if value is not None:
                yield (str(row["index"]),), float(value) * metric.scale
        return
    match metric.name:
        case "gpud":
            yield (), {name: str(status[name]) for name in ("version", "policy")}
        case "gpud_uptime_seconds":
            yield (), status["uptime_s"]
        case "gpud_draining":
            yield (), float(status["draining"])
        case "gpud_clients":
            yield (), status["clients"]
        case "gpud_orphaned_sessions":
            yield (), status["orphaned_sessions"]
        case "gpud_event_loop_stalls":
            yield (), status["loop_stalls"]
        case "gpud_event_loop_longest_stall_seconds":
            yield (), status["loop_longest_stall_s"]
        case "gpud_jobs":
            for state in ("waiting", "running"):
                yield (state,), status["jobs"].get(state, 0)
            for state, count in status["jobs"].items():
                if state not in ("waiting", "running"):
                    yield (state,), count
        case "gpud_ended_jobs":
            for state, count in status["ended"].items():
                yield (state,), count
        case "gpud_capsm_seconds":
            for kind, seconds in totals.capsm_seconds.items():
                yield (kind,), seconds
        case "gpud_queued_seconds":
            for kind in _KINDS:
                yield (kind,), (_buckets(totals.queued[kind]), totals.queued_seconds[kind])
        case "gpud_device":
            for row in devices:
                names = {name: str(row[name]) for name in ("name", "kind")}
                yield (str(row["index"]),), names
        case "gpud_device_ready":
            for row in devices:
                yield (str(row["index"]),), float(row["state"] == "ready")
        case "gpud_device_paused":
            for row in devices:
                yield (str(row["index"]),), float(row["paused"] is not None)


def _buckets(counts: list[int]) -> list[tuple[str, int]]:
    """Return the cumulative buckets of a histogram."""
    buckets, below = [], 0
    for bound, count in zip((*map(str, _BUCKETS_S), "+Inf"), counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets
