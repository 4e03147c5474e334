"""A day with gpud as docs/record_day.py records it: commands in a terminal, and what they print."""

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
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.day_programs import PROGRAMS
from gpud_client.cli.top import picture
from gpud_client.cli.top_view import TopView

ROOT = Path(__file__).resolve().parents[1]
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
