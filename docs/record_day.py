"""Records docs/tutorial/a-day.md and docs/images/top-*.png: what users see in a day with gpud.

    python docs/record_day.py

Every output on that page was printed, by a daemon and programs that this script starts in a folder
of its own; it takes three minutes. Commands run in a terminal of 100 columns. Names of folders and
users and process ids are replaced, nothing else. Where the script runs as root, robert is another
user; elsewhere what robert sees is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.day_recorder import ROOT, Day

PAGE = ROOT / "docs" / "tutorial" / "a-day.md"
RUN = (
    "gpuctl run saxpy.cu saxpy --grid 1 --block 256 --arg 2 --arg ones:f32:256 "
    "--arg ones:f32:256 --arg 256"
)
BLURRED = (
    "gpuctl run blur.cu blur --grid 4 --block 256 --arg ones:f32:1024 --arg zeros:f32:1024 "
    "--arg 1024"
)


HEAD = """\
# A day with gpud

<!-- Written by docs/record_day.py, which runs everything on this page: change that. -->

What two people see who share a machine with gpud. Every output was printed by a daemon that serves
a CPU device with two SMs, in a terminal of 100 columns; only names and process ids were replaced.
"""


def record(day: Day) -> None:
    """Live through the day."""
    day.say("## Morning: a service and a batch job")
    day.say("Anna runs a service that must answer fast, and a batch job that takes what is left.")
    day.file("service.py")
    day.start("service.py")
    day.start("train.py", "20000000")
    day.until("step")
    day.say("`gpuctl ps` has a line for each job, `top` draws the same and goes on.")
    time.sleep(2)
    day.show("gpuctl ps")
    day.say("![gpuctl top in 80 columns, dark](../images/top-dark-80.png)")
    day.say("![gpuctl top in 160 columns, light](../images/top-light-160.png)")
    day.say("A second batch job gets its part as soon as it comes. Why does each have what it has?")
    day.start("train.py", "10000000")
    day.until("step", jobs=2)
    time.sleep(1)
    first, second = day.jobs("train.py")
    day.show("gpuctl ps", f"gpuctl why {first}")
    day.pictures()
    if day.has_bob:
        day.say("Robert sees what others have, but not what they run.")
        day.show("gpuctl ps", "gpuctl memory", other=True)

    day.say("## A kernel of one's own")
    day.say("`gpuctl run` says what it does. Mistakes show the line, and what to write instead.")
    day.show(RUN)
    day.show(
        "sed -i 's/z\\[i\\]/y[i]/' saxpy.cu",
        RUN,
        "tail -n 10 mistakes.py",
        "python mistakes.py",
    )
    day.say("Ctrl-C ends a job; what it has printed is there.")
    day.show("timeout -s INT 4 gpuctl run slow.cu --grid 100000 --block 128 --arg zeros:f32:64")
    day.say("Arrays are NumPy's without a copy, and PyTorch's or JAX's by DLPack.")
    day.show("cat arrays.py", "python arrays.py")
    day.say(
        "Notebooks draw kernels, arrays and jobs as tables, and the progress of a job until it has "
        "ended.\nThis is what they are given:"
    )
    day.show("tail -n 3 displays.py", "python displays.py")

    day.say("## A kernel that is only right by chance")
    day.say(
        "`blur.cu` reads one element behind its array, and no result shows it. The\n"
        "[checking mode](../howto/check-a-kernel.md) sees it, and says which array, which element "
        "and which line."
    )
    day.file("blur.cu")
    day.show(
        BLURRED,
        f"{BLURRED} --check",
        "sed -i 's/= in\\[i + 1\\]/= i + 1 < n ? in[i + 1] : 0/' blur.cu",
        f"{BLURRED} --check --show 0",
    )
    day.say("A program asks for it with one argument. It needs no daemon: `gc.local` has its own.")
    day.show(
        "sed -i 's/= i + 1 < n ? in\\[i + 1\\] : 0/= in[i + 1]/' blur.cu",
        "cat checked.py",
        "python checked.py",
    )

    day.say("## Noon: settings, and a machine that is needed")
    day.say("Settings say where they come from. A change is kept in the file, as it was written.")
    day.show(
        "gpuctl config get memory",
        "gpuctl config set max_jobs_per_user 500",
        "gpuctl config set rebalance_limit 10",
        "gpuctl config set offline_floor 25%",
        "gpuctl config set grace soon",
        "gpud serve --offline-floor 200%",
        "cat gpud.toml",
        "gpuctl config show | grep -E 'setting|memory |max_jobs_per_user|rebalance_limit|floor'",
    )
    if day.has_bob:
        day.show("gpuctl config set max_jobs_per_user 9000", other=True)
    day.say(
        "Somebody needs the processors for an hour. What runs makes room and keeps what it did."
    )
    day.show("gpuctl pause --now", "gpuctl status", "gpuctl ps", f"gpuctl why {first}")
    day.say("Who starts something meanwhile is told why it waits, also where no bar can be drawn.")
    day.show(f"timeout -s INT 10 {RUN} 2>&1 | cat", "gpuctl resume")

    day.start("late.py")
    day.until_log("connections: session", "late.py")
    day.say("## Afternoon: a restart")
    day.say(
        "`gpuctl drain` ends the daemon after the jobs that it has. What the batch jobs still need "
        "is\ntoo long, so Anna cancels one, and looks what is waited for."
    )
    day.show(f"gpuctl cancel {second}", "gpuctl drain", "gpuctl ps", "gpud doctor | grep daemon")
    day.show(f"gpuctl cancel {first}")
    assert day.daemon is not None
    day.daemon.wait(60)
    day.say("The service had connected with `reconnect=True`. It goes on with the next daemon.")
    day.serve()
    time.sleep(2)
    day.show("gpuctl status", "cat service.log")
    day.say("A program that was connected without it is told what to do.")
    day.file("late.py")
    with (day.folder / "gpud.toml").open("a") as file:
        file.write("# restarted\n")
    day.running[-1].wait(60)
    day.show("cat late.log")

    day.say("## Evening: who had what")
    day.show(
        "gpuctl history --state cancelled -n 3",
        "gpuctl report --by program",
        "gpuctl history -n 2 --csv | cut -c 1-90",
        "curl -s --unix-socket metrics.sock http://gpud/metrics | grep -E '_allocated_sms|paused'",
    )

    day.say("## Night: figures that cannot be")
    day.say(
        "`gpud demo` measures what sharing gives. It says so when the machine did not let it: here "
        "other\nprograms used all processors while it measured online requests alone."
    )
    for program in day.running:
        program.kill()
    day.demo("gpud demo --device cpu:2 --seconds 3")


@contextmanager
def _recorded() -> Iterator[Day]:
    day = Day()
    try:
        day.serve()
        yield day
    finally:
        day.stop()


def main() -> int:
    """Record the page."""
    with _recorded() as day:
        record(day)
        PAGE.write_text(HEAD + "\n".join(day.lines) + "\n")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
