"""What ``gpuctl run`` prints of its job when that has ended."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpud.errors import GpudError
from gpud_client.cli import formatting
from gpud_client.cli.output import say

if TYPE_CHECKING:
    from gpud_client import Array, Job, Kernel

__all__ = ["HeldArray", "make_report", "print_report"]


class HeldArray(NamedTuple):
    """An array argument: its number, its text on the command line, and the array."""

    number: int
    written: str
    array: Array


def make_report(
    job: Job, function: Kernel, held: list[HeldArray], show: int, error: BaseException | None
) -> dict[str, Any]:
    """Make the document that ``--json`` prints."""
    arrays = []
    for number, written, array in held:
        values = array.get().ravel()[:show].tolist() if show else []
        arrays.append(
            {
                "argument": number,
                "written": written,
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "first": values,
            }
        )
    return {
        "job": job.id,
        "state": job.state,
        "kernel": function.name,
        "form": function.form,
        "progress": list(job.progress),
        "stats": job.stats,
        "output": job.output,
        "arrays": arrays,
        "error": error.to_wire() if isinstance(error, GpudError) else _other(error),
    }


def _other(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"code": "gpud", "message": str(error) or type(error).__name__, "fields": {}}


def print_report(report: dict[str, Any], files: dict[int, Path]) -> None:
    """Print that document for people; ``files`` says where arrays were written."""
    if report["output"]:
        sys.stdout.write(report["output"])
        if not report["output"].endswith("\n"):
            sys.stdout.write("\n")
    for array in report["arrays"]:
        if array["first"]:
            shape = "x".join(map(str, array["shape"]))
            values = " ".join(f"{value:g}" if isinstance(value, float) else str(value)
                              for value in array["first"])  # fmt: skip
            more = " ..." if math.prod(array["shape"]) > len(array["first"]) else ""
            say(f"argument {array['argument']}, {array['dtype']} {shape}: {values}{more}")
        if report["error"] is None and array["argument"] in files:
            say(f"argument {array['argument']} is in {files[array['argument']]}")
    stats = report["stats"]
    times = [
        f"{name} {formatting.seconds(stats[key])}"
        for key, name in (
            ("queued_s", "queued"), ("first_block_s", "first block after"), ("run_s", "ran"),
            ("release_s", "longest release"),
        )
        if stats.get(key) is not None
    ]  # fmt: skip
    if stats.get("resizes"):
        times.append(f"{stats['resizes']} resize{'s' * (stats['resizes'] > 1)}")
    if stats.get("queued_as"):
        times.append(f"queued {formatting.counted(stats['queued_as'])}")
    done, total = report["progress"]
    say(
        f"job {report['job']} {report['state']}: {done:,} of {total:,} task blocks, "
        f"{report['form']} form" + "".join(f", {time}" for time in times)
    )
