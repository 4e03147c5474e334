"""Records docs/tutorial/a-day.md and docs/images/top-*.png: what users see in a day with gpud.

    python docs/record_day.py

Every output on that page was printed, by a daemon and programs that this script starts in a folder
of its own; it takes three minutes. Commands run in a terminal of 100 columns. Names of folders and
users and process ids are replaced, nothing else. Where the script runs as root, robert is another
user; elsewhere what robert sees is left out.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.day_programs import PROGRAMS
from gpud_client.cli.top import picture
from gpud_client.cli.top_view import TopView

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial" / "a-day.md"
ROBERT = 65534
COLUMNS, LINES = 100, 40
TIMEOUT_S = 120.0
IMAGES = ROOT / "docs" / "images"
STYLES = {
    "dark": {"back": "#1e1e1e", "text": "#d4d4d4", "dim": "#7a7a7a", "green": "#23d18b",
             "blue": "#3b8eea"},
    "light": {"back": "#ffffff", "text": "#202020", "dim": "#909090", "green": "#107c10",
              "blue": "#0451a5"},
}  # fmt: skip
BIN = Path(sys.executable).parent
RUN = (
    "gpuctl run saxpy.cu saxpy --grid 1 --block 256 --arg 2 --arg ones:f32:256 "
    "--arg ones:f32:256 --arg 256"
)
BLURRED = (
    "gpuctl run blur.cu blur --grid 4 --block 256 --arg ones:f32:1024 --arg zeros:f32:1024 "
    "--arg 1024"
)
OTHER = f"""#!{sys.executable}
import contextlib, io, os, sys
from gpud_client.cli import main
for command in ("ps", "memory", "config show"):  # loads what it needs while it may read it
    with contextlib.redirect_stdout(io.StringIO()):
        main(command.split())
os.setuid({ROBERT})
sys.exit(main())
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()].|\x1b[=>]")


class Day:
    """A folder with programs, a daemon, and what was recorded so far."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-day-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.socket = self.folder / "gpud.sock"
        self.lines: list[str] = []
        self.running: list[subprocess.Popen[bytes]] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        self.me = pwd.getpwuid(os.geteuid()).pw_name
        self.has_bob = os.geteuid() == 0
        for name, text in PROGRAMS.items():
            (self.folder / name).write_text(text)
        (self.folder / "robert-gpuctl").write_text(OTHER)
        (self.folder / "robert-gpuctl").chmod(0o755)
        (self.folder / "gpud.toml").write_text(
            '# What our lab has agreed on.\ndrain_timeout = "30 s"  # enough for a request\n'
            'socket_mode = "0666"\nhistory_file = "history.sqlite"\n'
            'metrics_socket = "metrics.sock"\n'
        )

    # -- what is written

    def say(self, text: str) -> None:
        """Add a paragraph or a heading."""
        self.lines += ["", *text.strip("\n").splitlines()]

    def show(self, *commands: str, other: bool = False, most: int = 30) -> None:
        """Run commands one after the other, and record them with what they print."""
        self.lines += ["", "```console"]
        for command in commands:
            self.lines.append(f"{'robert$' if other else '$'} {command}")
            output = self._tidy(
                self._typed(command.replace("gpuctl", "robert-gpuctl") if other else command)
            ).splitlines()
            self.lines += output[:most] + (["..."] if len(output) > most else [])
        self.lines.append("```")

    def file(self, name: str) -> None:
        """Record what is in a file."""
        self.lines += ["", "```console", f"$ cat {name}"]
        self.lines += [*(self.folder / name).read_text().splitlines(), "```"]

    # -- what happens

    def serve(self) -> None:
        """Start a daemon, and wait until it serves."""
        with (self.folder / "log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [BIN / "gpud", "serve", "--device", "cpu:2", "--config", "gpud.toml"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        subprocess.run(
            [BIN / "gpuctl", "status", "--wait", "60"], env=self._environment(),
            stdout=subprocess.DEVNULL, check=True, timeout=TIMEOUT_S,
        )  # fmt: skip

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program in the background; what it prints is in its log."""
        with (self.folder / command[0]).with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=self.folder, env=self._environment(),
                stdout=log, stderr=log,
            )  # fmt: skip
        self.running.append(process)
        return process

    def until(self, words: str, *, jobs: int = 1) -> None:
        """Wait until gpuctl ps has so many lines with these words."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            if self._typed("gpuctl ps").count(words) >= jobs:
                return
            time.sleep(0.2)
        raise TimeoutError(f"gpuctl ps shows no {words!r}")

    def until_log(self, *words: str) -> None:
        """Wait until a line of the daemon's log has all these words."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            lines = (self.folder / "log").read_text().splitlines()
            if any(all(word in line for word in words) for line in lines):
                return
            time.sleep(0.1)
        raise TimeoutError(f"the daemon's log has no line with {words}")

    def jobs(self, program: str) -> list[str]:
        """Return the ids of a program's jobs, the oldest first."""
        found = self._typed("gpuctl --json ps")
        return [row["id"] for row in json.loads(found)["jobs"] if row["program"] == program]

    def pictures(self) -> None:
        """Draw what gpuctl top shows: dark in 80 columns, light in 160."""
        done = subprocess.run(
            [BIN / "gpuctl", "top", "--json", "--interval", "0.2", "--count", "60"],
            env=self._environment(), stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        looks = [json.loads(self._tidy(line)) for line in done.stdout.decode().splitlines()]
        view = TopView()
        for number, look in enumerate(looks):
            look["status"]["pid"] = 4711
            view.update(look, now_s=number * 0.2)
        view.press("down")
        for columns, name in ((80, "dark"), (160, "light")):
            drawn = picture(looks[-1], view, columns, 16)
            draw(drawn, columns, STYLES[name], IMAGES / f"top-{name}-{columns}.png")

    def demo(self, command: str) -> None:
        """Record a demo; others use all processors while it measures online requests alone.

        Repeated if its figures can be: others may use the processors all the time.
        """
        shown: list[str] = []
        for _ in range(4):
            shown = self._disturbed(command)
            if any("cannot be" in line for line in shown):
                self.lines += ["", "```console", f"$ {command}", *shown, "```"]
                return
        raise RuntimeError("\n".join(["the demo's figures can be:", *shown]))

    def _disturbed(self, command: str) -> list[str]:
        burners: list[subprocess.Popen[bytes]] = []
        shown: list[str] = []
        demo = subprocess.Popen(
            command.split(), cwd=self.folder, env=self._environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            for line in demo.stdout or ():
                shown += self._tidy(line).splitlines() or [""]
                if "online alone:" in line:
                    burn = [sys.executable, "-c", "while True: pass"]
                    burners = [subprocess.Popen(burn) for _ in range(60 * (os.cpu_count() or 1))]
                elif "offline alone:" in line:
                    for burner in burners:
                        burner.kill()
        finally:
            demo.kill()
            for burner in burners:
                burner.kill()
                burner.wait()
        return shown

    def stop(self) -> None:
        """End everything that was started."""
        for process in self.running:
            process.kill()
            process.wait()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGINT)
            self.daemon.send_signal(signal.SIGINT)
            self.daemon.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUD_")}
        path = f"{BIN}:{self.folder}:{os.environ['PATH']}"
        return {
            **kept, "GPUD_SOCKET": str(self.socket), "PATH": path,
            "XDG_CACHE_HOME": str(self.folder / "cache"), "TERM": "xterm", "NO_COLOR": "1",
            "COLUMNS": str(COLUMNS), "LINES": str(LINES),
        }  # fmt: skip

    def _typed(self, command: str) -> str:
        """Run a command of the shell in a terminal; return what it printed there."""
        ours, its = os.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["sh", "-c", command], stdin=its, stdout=its, stderr=its, cwd=self.folder,
            env=self._environment(),
        )  # fmt: skip
        os.close(its)
        data = bytearray()
        end = time.monotonic() + TIMEOUT_S
        try:
            while time.monotonic() < end:
                if select.select([ours], [], [], 0.2)[0]:
                    try:
                        piece = os.read(ours, 65536)
                    except OSError:  # the other end is closed
                        break
                    data += piece
        finally:
            os.close(ours)
            process.wait(TIMEOUT_S)
        return data.decode(errors="replace")

    def _tidy(self, text: str) -> str:
        text = ESCAPES.sub("", text.replace("\r\n", "\n"))
        text = "\n".join(line.rpartition("\r")[2].rstrip() for line in text.split("\n"))
        text = text.replace(str(self.folder), "/srv/gpud").replace(str(ROOT), "/opt/gpud")
        if self.me == "root":
            text = re.sub(r"\broot\b(?! (and|or) )", "anna", text)
        text = re.sub(r"\bnobody\b(?! (holds|knows))", "robert", text)
        text = re.sub(r"\bpid (\d+)", "pid 4711", text)
        text = re.sub(r"\n{3,}", "\n\n", text)
        return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


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


def draw(what: Any, columns: int, style: dict[str, str], path: Path) -> None:
    """Draw what Rich would print in a terminal of these colours."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    console = Console(width=columns, force_terminal=True, color_system="standard", file=StringIO())
    lines = console.render_lines(what, pad=False)
    figure = plt.figure(figsize=(columns * 0.085, len(lines) * 0.18 + 0.2), facecolor=style["back"])
    for number, segments in enumerate(lines):
        column = 0
        for segment in segments:
            colour = style["text"]
            bold = segment.style is not None and segment.style.bold
            if segment.style is not None and segment.style.dim:
                colour = style["dim"]
            elif segment.style is not None and segment.style.color is not None:
                colour = style.get(segment.style.color.name, colour)
            for letter in segment.text:
                x = (column + 1) / (columns + 2)
                y = 1 - (number + 0.9) / (len(lines) + 0.8)
                figure.text(
                    x, y, letter, color=colour, family="DejaVu Sans Mono", fontsize=9,
                    weight="bold" if bold else "normal",
                )  # fmt: skip
                column += 1
    figure.savefig(path, dpi=100, facecolor=style["back"])
    plt.close(figure)


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
