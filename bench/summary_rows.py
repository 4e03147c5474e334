"""Results of benchmarks as rows of the table of figures: one function for each kind of result.

Each takes what a benchmark wrote under bench/results/. Figures that miss their aim, and failures,
are in the rows like all others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

Result = dict[str, Any]
Row = tuple[str, str]
"""What was measured, and the figure."""


def conformance(result: Result) -> Iterator[Row]:
    verdicts = [verdict for row in result["rows"] for verdict in row["results"].values()]
    bad = [v for v in verdicts if v.split(":")[0] not in ("right", "same bytes", "skipped")]
    cases = sum(bool(row["results"]) for row in result["rows"])
    yield (
        f"conformance: {cases} programs, each in every legal form, against NumPy",
        f"{len(verdicts) - len(bad)} of {len(verdicts)} right",
    )
    same = verdicts.count("same bytes")
    yield "... of these, rewritten forms that must leave the unmodified kernel's bytes", f"{same}"
    claims = [verdict for row in result["rows"] for verdict in row.get("claims", {}).values()]
    if claims:
        ways = max(len(row["claims"]) for row in result["rows"])
        right = sum(verdict.split(":")[0] in ("right", "same bytes") for verdict in claims)
        yield (
            f"... and the persistent form with {ways} other ways to claim in chunks and in advance",
            f"{right} of {len(claims)} right",
        )


def resizes(result: Result) -> Iterator[Row]:
    counted = f"{result['task_blocks']:,} task blocks counted by the kernels"
    kernels = f"{result['kernels_run']} kernels (programs times forms)"
    yield (
        f"{result['events']:,} random resizes of {kernels} while they ran, {counted}",
        f"{len(result['wrong'])} problems",
    )


def ptxas(result: Result) -> Iterator[Row]:
    rows = [row for row in result["rows"] if row["form"] == "persistent"]
    more = [row["after"]["registers"] - row["before"]["registers"] for row in rows]
    targets = ", ".join(result["targets"])
    yield (
        f"rewritten kernels that ptxas {result['ptxas']} assembles, for {targets}",
        f"{len(result['rows'])}, {len(result['failures'])} failures",
    )
    if more:
        yield (
            "registers a thread that the persistent form adds",
            f"median {statistics.median(more):g}, most {max(more)}",
        )
    kept = [row["blocks"] for row in rows if row["arch"] == "sm_90" and "blocks" in row]
    for number, name in ((2, "the loop"), (1, "loop and bounds checks")):
        if kept:
            fewer = sum(one[number] < one[0] for one in kept)
            mean = math.exp(statistics.mean(math.log(one[number] / one[0]) for one in kept))
            yield (
                f"blocks that fit on an SM of sm_90 with {name}, against the unmodified kernel",
                f"fewer in {fewer} of {len(kept)} kernels; geometric mean {mean:.3f}",
            )


def rewrite_speed(result: Result) -> Iterator[Row]:
    aims = result["aims"]
    for row in result["rows"]:
        cold, bare = row["cold_ms_per_1000_lines"], row["bare_ms_per_1000_lines"]
        cached, aim = row["cached_ms"], f"(aim {aims['cold_ms_per_1000_lines']:g})"
        yield (
            f"rewriting {row['name']}, {row['lines']:,} PTX lines, cold",
            f"{cold:.1f} ms per 1,000 lines; {bare:.1f} without bounds checks and kill polls {aim}",
        )
        yield (
            "... from the cache, a program",
            f"{cached:.2f} ms (aim {aims['cached_ms']:g} for 1,000 lines)",
        )


def compile_time(result: Result) -> Iterator[Row]:
    rows = result["suite"]
    total, first = (sum(row[name] for row in rows) for name in ("total_s", "generate_s"))
    slowest = f"{rows[0]['total_s']:.1f} s ({rows[0]['case']})"
    yield (
        f"{len(rows)} kernels of the suite compiled by LLVM, processor time of all; code generator",
        f"{total:.0f} s, {first / total:.2f} of it; slowest {slowest}",
    )
    for row in result.get("first_result", ()):
        when = "nothing cached, another session, the next daemon"
        yield (
            f"... to the first result of four {row['family']}: {when}",
            f"{row['empty_s']:.2f}, {row['session_s']:.2f}, {row['daemon_s']:.2f} s",
        )


def persistent_cost(result: Result) -> Iterator[Row]:
    yield "persistent form against unmodified, on the CPU device", result["summary"]


def service(result: Result) -> Iterator[Row]:
    aims = result["aims"]

    def median(name: str) -> float:
        return float(result[name]["median"])

    for percent in (50, 99):
        ours, floor = (median(f"{side}_p{percent}_us") for side in ("gpud", "echo"))
        ratio = median(f"round_trip_ratio_p{percent}")
        yield (
            f"an empty kernel from `submit` to `result`, p{percent}, beside a bare msgpack echo",
            f"{ours:.0f} us / {floor:.0f} us: {ratio:.2f} (aim {aims['round_trip_ratio']:g})",
        )
    yield (
        "... p50 beside a relay through as many processes that does nothing",
        (
            f"{median('gpud_p50_us'):.0f} us / {median('relay_p50_us'):.0f} us: "
            f"{median('relay_ratio_p50'):.1f}"
        ),
    )
    yield (
        "submissions per second, 64 in flight, beside as many echoes",
        (
            f"{median('gpud_per_second'):,.0f} / {median('echo_per_second'):,.0f}: "
            f"{median('pipelined_ratio'):.3f} (aim {aims['pipelined_ratio']:g})"
        ),
    )
    yield (
        "a sequence of 100 empty kernels, for each",
        f"{median('sequence_us_a_kernel'):.1f} us (aim {aims['sequence_us_a_kernel']:g})",
    )


def colocation(result: Result) -> Iterator[Row]:
    names = {
        "reservations": "gpud",
        "lane": "gpud, requests in a lane",
        "fifo": "run to completion",
        "equal": "equal sharing",
    }
    ours = ("reservations", "lane")
    for row in result["rows"]:
        where = f"online load {row['load']:g}, offline task blocks of {row['block_ms']:g} ms"
        if "r99" not in row:
            yield f"{names[row['policy']]}: {where}", f"wrong: {row['problems'][0]}"
        elif row["block_ms"] == result["aims"]["block_ms"] or row["policy"] in ours:
            yield (
                f"{names[row['policy']]}: {where}",
                f"r99 {row['r99']:.2f}, harvest {row['harvest']:.2f}",
            )
    aims = result["aims"]
    yield "... aim of gpud's at 1 ms", f"r99 {aims['r99']:g}, harvest {aims['harvest']:g}"
    if "lane_r99" in aims:
        yield (
            "... aim in a lane at 1 ms, and at 0.1 ms",
            (
                f"r99 {aims['lane_r99']:g} and {aims['lane_r99_fine']:g}, "
                f"harvest {aims['lane_harvest']:g}"
            ),
        )


def fleet(result: Result) -> Iterator[Row]:
    yield (
        (
            f"{result['clients']} clients attached, {result['submitting']} of them submitting for "
            f"{result['seconds']:.0f} s: jobs lost or wrong"
        ),
        f"{len(result['wrong'])} of {result['jobs']:,}",
    )
    yield (
        "... Jain's fairness index of jobs done, of 8 long jobs' task blocks",
        (
            f"{result['jain_of_jobs']:.3f}, {result['jain_of_long_jobs']:.3f} "
            f"(aim {result['aims']['jain']:g})"
        ),
    )
    yield "... memory of an idle client", f"{result['idle_client_bytes'] / 1024:.1f} KiB"
    yield "... processor time of the front", f"{result['front_cpu_share']:.0%} of a core"


def launch(result: Result) -> Iterator[Row]:
    rows, aims = result["rows"], result["aims"]
    python = rows["empty job: Python until it is given to an SM"]
    yield (
        "an empty job on the CPU device: Python before native code runs, p50",
        f"{python['p50']:.0f} us (aim {aims['start_us']:g})",
    )
    for blocks in ("1 task block", "64 task blocks"):
        each = rows[f"100 kernels of {blocks}: for each"]
        yield (
            f"a sequence of 100 empty kernels of {blocks}, each further one, p50",
            f"{each['p50']:.2f} us (aim {aims['kernel_us']:g})",
        )
    for row in result["releases"]:
        yield (
            (
                "half of the CPU device released, decision to last block gone, task blocks of "
                f"{row['block_us'] / 1e3:.1f} ms"
            ),
            f"p50 {row['p50_us'] / 1e3:.2f} ms, p99 {row['p99_us'] / 1e3:.2f} ms",
        )


def cuda_host(result: Result) -> Iterator[Row]:
    own = result["graph"]
    yield (
        "CUDA device over a model of the driver, host's own time: a launch begun",
        f"{own['start_us']:.0f} us",
    )
    yield (
        "... each further launch of a sequence: in a graph, by native code",
        f"{own['launch_us']:.1f}, {result['native']['launch_us']:.1f} us",
    )
    yield (
        "... a release to its first store, in all; a run ended",
        f"{own['release_first_word_us']:.0f}, {own['release_us']:.0f} us; {own['end_us']:.0f} us",
    )


def lane(result: Result) -> Iterator[Row]:
    aims, clients = result["aims"], result["clients"]
    for place, sides in result["round_trip_us"].items():
        ours, echo = sides["lane"], sides["echo"]
        yield (
            f"an empty kernel in a lane from `submit` to `result`, beside a bare echo, {place}",
            (
                f"p50 {ours['p50']:.1f} and {echo['p50']:.1f} us: {ours['p50'] / echo['p50']:.2f} "
                f"(aim {aims['p50_ratio']:g}); p99 {ours['p99']:.0f} and {echo['p99']:.0f} us: "
                f"{ours['p99'] / echo['p99']:.2f} (aim {aims['p99_ratio']:g})"
            ),
        )
    yield (
        "... one `submit` with three arguments, p50; launches a second",
        (
            f"{result['submit_us']['p50']:.1f} us (aim {aims['submit_us']:g}); "
            f"{result['launches_a_second']:,.0f} (aim {aims['launches_a_second']:,.0f})"
        ),
    )
    yield (
        "... launches a second of eight clients with a lane each, beside one; slowest by the mean",
        f"{clients['together']:,.0f} and {clients['one']:,.0f}; {clients['least_of_mean']:.2f}",
    )


def workloads(result: Result) -> Iterator[Row]:
    what = {
        "fits": "three training loops in turns, where what persists fits",
        "exceeds": "... where it exceeds the device, and moves to host memory and back",
    }
    for name, row in result.items():
        parts = row["of_alone"]
        yield (
            f"{what[name]}: time by that of one after the other, beside swapping all at each turn",
            f"{parts['turns']:.3f} and {parts['swap']:.3f} (aim {row['aims']['turns']:.3f})",
        )


def launch_path(result: Result) -> Iterator[Row]:
    for place, ways in result["us"].items():
        (trip, took), (one, each) = (
            (ways[way]["all"]["median"], ways[way]["took"]["median"])
            for way in ("round trips", "pipelined")
        )
        what = "processor time of all processes, one at a time and with 64 in flight"
        yield (
            f"a job on the ordinary path, {place}: {what}",
            f"{trip:.0f} and {one:.0f} us (aim {result['aim_us']})",
        )
        second = "... from `submit` to `result`; jobs a second with 64 in flight"
        yield second, f"{took:.0f} us; {1e6 / each:,.0f}"


def lane_kills(result: Result) -> Iterator[Row]:
    back, aim = result["back_ms"], result["aims"]["back_ms_p99"]
    yield (
        f"... {result['kills']:,} clients killed inside a lane: resources back",
        f"p50 {back['p50']:.0f} ms, p99 {back['p99']:.0f} ms (aim {aim:g})",
    )


def task_kills(result: Result) -> Iterator[Row]:
    what = (
        f"{result['kills']:,} runners, shepherds and programs of {result['tasks']:,} tasks killed"
    )
    yield f"{what}: lost, run twice unannounced, or left", f"{len(result['wrong'])}"


def tasks_replay(result: Result) -> Iterator[Row]:
    for nodes, replay in result.items():
        if nodes == "machine":
            continue
        rows = replay["policies"]
        names = ("gpud", "static split", "backfill", "the source's rules")
        used = [f"{rows[name]['GPU utilisation']:.3f}" for name in names]
        waits = [f"{rows[name]['CPU wait, min'][0]:,.0f}" for name in names]
        yield (
            f"tasks replayed on {nodes}: GPUs used, beside static split, backfill and the source",
            f"{used[0]}; {', '.join(used[1:])}",
        )
        yield "... CPU tasks wait, mean", f"{waits[0]} min; {', '.join(waits[1:])}"


def tasks_search(result: Result) -> Iterator[Row]:
    for name in ("ours", "literal rule"):
        row = result[name]
        yield (
            f"search for cores, {name}: within one core of the knee, and windows (aim 0.95)",
            f"{row['within one core']:.3f}; {row['windows']:.1f}",
        )


def tasks_queue(result: Result) -> Iterator[Row]:
    p99_ms = [f"{result[one]['p99_ms']:.1f}" for one in ("submit", "list", "end and start")]
    what = f"with {result['waiting']:,} tasks waiting: submit, list, schedule, p99"
    yield what, f"{', '.join(p99_ms)} ms (aim 10)"


def rings(result: Result) -> Iterator[Row]:
    beside = result["beside_us"]
    yield (
        f"{result['rings']:,} hostile rings, of which {result['lanes']:,} broke a rule: wrong",
        f"{len(result['wrong'])}",
    )
    yield (
        f"... {result['beside_launches']:,} launches in another lane beside them, each checked",
        f"p50 {beside['p50']} us, p99 {beside['p99']} us",
    )


def lane_wake(result: Result) -> Iterator[Row]:
    for name, row in result["rows"].items():
        yield (
            (
                f"a launch in a lane that lends its share, offline blocks of {name}: record to "
                "first block, p50 and p99, of which above the blocks that had to leave"
            ),
            (
                f"{row['first_p50_us']:.0f} and {row['first_p99_us']:.0f} us; "
                f"{row['above_p50_us']:.0f} and {row['above_p99_us']:.0f} us"
            ),
        )


def programs(result: Result) -> Iterator[Row]:
    costs = result["costs"]
    for name in ("launch", "launch_and_synchronise", "allocate_and_free"):
        yield (
            f"a program under gpuctl exec: {name.replace('_', ' ')}, p50 and p99",
            f"{costs[name]['p50_ns'] / 1e3:.2f} and {costs[name]['p99_ns'] / 1e3:.2f} us",
        )
    yield (
        "... copies to the device / memcpy in the same program",
        f"{costs['copy_gb_s'] / costs['memcpy_gb_s']:.2f} ({costs['copy_gb_s']:.1f} GB/s)",
    )
    (low, few), (high, many) = result["shares"].items()
    yield (
        (
            f"two programs that wait for each launch, quotas {low} and {high}: launches of the "
            "second / of the first"
        ),
        f"{many / few:.2f}, to be 9",
    )


def scheduler(result: Result) -> Iterator[Row]:
    aims = result["aims"]
    for row in result["decisions"]:
        every = row["kinds"]["all"]
        aim = f", aim {aims['p99_us']:g}" if row["live_jobs"] == aims["live_jobs"] else ""
        yield (
            f"a decision of the scheduler with {row['live_jobs']:,} jobs alive, p50 and p99",
            f"{every['p50_us']:.0f} and {every['p99_us']:.0f} us{aim}",
        )
    replay = result["replay"]
    yield (
        f"a log of {replay['events']:,} events replayed",
        f"{replay['seconds']:.1f} s, {replay['peak_mib']:.0f} MiB",
    )


def out_of_bounds(result: Result) -> Iterator[Row]:
    kinds = f"{result['kinds_of_access']} kinds of access"
    legal = f"{result['legal_twins']:,} legal ones"
    yield (
        f"out-of-bounds accesses, {kinds}, through the daemon: not contained or wrongly reported",
        f"{result['wrong']} of {result['bad_accesses']:,}, and of {legal}",
    )


def bounds_checks(result: Result) -> Iterator[Row]:
    aims = {"bounds checks": f" (aim {result['aim']:.2f})"}
    for side, one in result["summary"].items():
        name, worst = one["worst"][0]
        mean = f"geometric mean {one['geometric_mean']:.3f}{aims.get(side, '')}"
        yield (
            f"{side} on the CPU device: time with / without, {one['kernels']} kernels",
            f"{mean}; median {one['ratios']['median']:.3f}, worst {worst:.2f} ({name})",
        )


def client_kills(result: Result) -> Iterator[Row]:
    back, many, aim = result["back_ms"], result["connections"], result["aims"]["back_ms_p99"]
    yield (
        f"{result['kills']:,} clients killed at random moments: resources back",
        f"p50 {back['p50']:.0f} ms, p99 {back['p99']:.0f} ms (aim {aim:g})",
    )
    wrong, leaks = len(result["wrong"]), len(result["leaks"])
    yield "... survivors' jobs wrong, and resources leaked", f"{wrong}, {leaks}"
    yield f"{many['connections']:,} connections, each", f"{many['kib_of_a_session']:.1f} KiB"


def host_failures(result: Result) -> Iterator[Row]:
    service = result["service_ms"]
    yield (
        f"{result['kills']} device hosts killed at random moments under load: jobs again",
        f"after p50 {service['p50'] / 1e3:.1f} s, p99 {service['p99'] / 1e3:.1f} s",
    )
    wrong = len(result["wrong"])
    yield "... task blocks lost or doubled in jobs that had not begun there", f"{wrong}"


def fuzz(result: Result) -> Iterator[Row]:
    parts = [
        f"{result[name]['messages']:,} {what}"
        for name, what in (
            ("parser", "to the parser"),
            ("coverage", "guided by coverage"),
            ("live", "to a live daemon"),
        )
        if result.get(name, {}).get("messages")
    ]
    yield (
        f"{result['messages']:,} mutated messages ({', '.join(parts)}): crashes, hangs, growth",
        f"{len(result['problems'])}",
    )


def soak(result: Result) -> Iterator[Row]:
    names = {"host": "device host", "worker": "compile process"}
    growth = ", ".join(
        f"{names.get(role, role)} {one['growth_mib']:+.1f} MiB"
        for role, one in result["processes"].items()
        if "growth_mib" in one
    )
    yield (
        f"{result['seconds'] / 60:.0f} minutes with good and hostile clients: problems",
        f"{len(result['problems'])}; last against second quarter: {growth}",
    )
