"""``gpud-ray up``, ``status``, ``submit`` and ``down``, as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCALE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }'


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def gpud_ray(tmp_path: Path) -> Any:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "RAY_DEDUP_LOGS": "0"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-c",
            "import gpud_ray.cli; raise SystemExit(gpud_ray.cli.main())",
        ]
        return subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=200,
            check=False,
        )  # fmt: skip

    yield run
    run("down")


def test_a_machine_becomes_a_node_runs_items_and_is_taken_out(
    gpud_ray: Any, tmp_path: Path
) -> None:
    port = free_port()
    up = gpud_ray("up", "--device", "cpu:2", "--port", str(port), "--set", "period_s=0.2",
                  "--ray=--num-cpus=1", "--ray=--object-store-memory=100000000",
                  "--ray=--include-dashboard=false", "--json")  # fmt: skip
    assert up.returncode == 0, up.stderr
    node = json.loads(up.stdout)
    assert node["gpud_sms"] == 2

    again = gpud_ray("up", "--device", "cpu:1")
    assert again.returncode == 1
    assert "is a node of" in again.stderr

    status = json.loads(gpud_ray("status", "--json").stdout)
    assert [(row["node"], row["state"], row["sms"]) for row in status["nodes"]] == [
        (node["node"], "ready", 2)
    ]
    assert "idle rate" in gpud_ray("status").stdout

    kernel = tmp_path / "scale.cu"
    kernel.write_text(SCALE)
    items = ("submit", str(kernel), "scale", "-g", "1", "-b", "32", "-a")
    done = gpud_ray(*items, "ones:f32:32", "-n", "5", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["done"], told["failed"], told["nodes"]) == (5, [], {node["node"]: 5})
    assert told["first"] == [[2.0] * 8]
    failed = gpud_ray("submit", str(kernel), "scale", "-g", "1", "-b", "9999", "-a", "ones:f32:32")
    assert failed.returncode == 1
    assert "9999" in failed.stderr

    down = gpud_ray("down")
    assert down.returncode == 0, down.stderr
    assert "no node" in down.stdout
    # Without an address another test's cluster would be found.
    for command in (("down",), ("status", "--address", f"127.0.0.1:{port}")):
        gone = gpud_ray(*command)
        assert gone.returncode == 3
        assert "gpud-ray up" in gone.stderr


def test_two_nodes_to_try_out_of_which_nothing_is_left_however_they_end(
    gpud_ray: Any, tmp_path: Path
) -> None:
    tried = gpud_ray("try", "2", "--device", "cpu:1", "--port", str(free_port()))
    assert tried.returncode == 0, tried.stderr
    nodes = json.loads(gpud_ray("status", "--json").stdout)["nodes"]
    assert [(row["state"], row["sms"]) for row in nodes] == [("ready", 1)] * 2
    why = gpud_ray("status", "--why").stdout
    assert "memory MHz" in why
    assert why.count("CPU device") == 2

    files = [json.loads(file.read_text()) for file in tmp_path.glob("gpud-ray-*.json")]
    assert len(files) == 2
    # The keeper and Ray's daemons are killed: nobody is left who would end the rest.
    os.kill(files[0]["pid"], signal.SIGKILL)
    for process in Path("/proc").glob("[0-9]*"):
        if group(process) == files[0]["pid"] and "raylet" in (process / "comm").read_text():
            os.kill(int(process.name), signal.SIGKILL)
    down = gpud_ray("down")
    assert down.returncode == 0, down.stderr
    groups = {group(process) for process in Path("/proc").glob("[0-9]*")}
    assert not groups & {one["pid"] for one in files}
    assert list(tmp_path.glob("gpud-ray-*.json")) == []


def group(process: Path) -> int | None:
    try:
        return os.getpgid(int(process.name))
    except ProcessLookupError:
        return None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("up", "--set", "period_s=never"), "period_s is a number, not 'never'"),
        (("up", "--socket", "x", "--device", "cpu:1"), "not both"),
        (("status", "--address", "127.0.0.1:1"), "no Ray cluster answers"),
    ],
)
def test_bad_input_says_what_to_do(gpud_ray: Any, arguments: tuple[str, ...], problem: str) -> None:
    done = gpud_ray(*arguments)
    assert done.returncode in (2, 3)
    assert problem in done.stderr
