"""``gpud-ray up``, ``down`` and ``status``: this machine as a node, and what the cluster does."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud_client.cli import formatting
from gpud_client.cli.exit_status import NO_DAEMON
from gpud_client.cli.output import Column, JsonOption, emit, print_table, say
from gpud_ray.cli.progress import progress
from gpud_ray.errors import NoCluster
from gpud_ray.node.config import DEVICES_VARIABLE, DaemonConfig

if TYPE_CHECKING:
    from gpud_ray.placement.settings import Settings

__all__ = ["AddressOption", "connect", "down", "status", "try_out", "up"]

_ANSWER_S = 5.0
_CONNECT_S = 30.0
_READY_S = 60.0
_POLL_S = 0.1

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="The Ray cluster; by default the one of which this machine is a node.",
        show_default=False,
    ),
]

_NODES = (
    Column("node", "node", lambda value: str(value)[:8]),
    Column("address", "gpud", least=16),
    Column("state", "state"),
    Column("gpus", "GPUs", formatting.count, right=True),
    Column("sms", "SMs", formatting.count, right=True),
    Column("idle_sms", "idle", formatting.rounded, right=True),
    Column("memory_bytes", "memory", formatting.size, right=True, spare=1),
    Column("memory_free_bytes", "free", formatting.size, right=True),
    Column("idle_rate", "idle rate", lambda value: f"{value:.3g}", right=True),
    Column("items", "items", formatting.count, right=True),
    Column("beat_age_s", "heartbeat", formatting.seconds, right=True, spare=2),
)


def _percent(value: Any) -> str:
    return "-" if value is None else f"{100 * float(value):.0f} %"


_INPUTS = (
    Column("node", "node", lambda value: str(value)[:8]),
    Column("name", "GPU", least=12),
    Column("core_clock_mhz", "MHz", formatting.rounded, right=True),
    Column("sms", "SMs", formatting.count, right=True),
    Column("cores_per_sm", "cores", formatting.rounded, right=True),
    Column("idle_cores", "idle", _percent, right=True),
    Column("jobs", "jobs", formatting.count, right=True),
    Column("memory_clock_mhz", "memory MHz", formatting.rounded, right=True),
    Column("bus_width_bits", "bits", formatting.rounded, right=True),
    Column("idle_bandwidth", "idle", _percent, right=True, spare=2),
    Column("memory_bytes", "memory", formatting.size, right=True, spare=1),
    Column("memory_free_bytes", "free", formatting.size, right=True),
    Column("warps_per_sm", "warps", formatting.count, right=True),
    Column("idle_rate", "idle rate", lambda value: f"{value:.3g}", right=True),
)
_SMALL = ("--num-cpus=1", "--object-store-memory=200000000")


def up(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="The Ray cluster to join; without it this machine begins one.",
            show_default=False,
        ),
    ] = None,
    gpud: Annotated[
        str | None,
        typer.Option("--socket", metavar="PATH", help="The gpud of this node, if it runs already.",
                     show_default=False),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", show_default=False,
                     envvar=DEVICES_VARIABLE,
                     help="Start a gpud for this node with these devices, such as cuda or cpu:4."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Of the cluster that begins.")] = 6379,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", show_default=False,
                     help="A setting of the cluster that begins, such as period_s=0.5."),
    ] = None,
    ray_option: Annotated[
        list[str] | None,
        typer.Option("--ray", metavar="OPTION", show_default=False,
                     help="A further option of ray start, such as --ray=--num-cpus=4."),
    ] = None,
    another: Annotated[
        bool,
        typer.Option("--another", help="A further node on this machine, which is one already."),
    ] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make this machine a node: start Ray on it, and an agent in front of its gpud."""
    from gpud.errors import InvalidArgument
    from gpud_ray.placement.settings import Settings

    try:
        settings = Settings().changed(setting or [])
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    if gpud is not None and device:
        raise typer.BadParameter("--socket names a gpud that runs, --device starts one: not both")
    if another and not device:
        raise typer.BadParameter("--another needs --device: a gpud of its own for the node")
    node = _start(address, gpud, tuple(device or ()), port, settings, ray_option or [],
                  another=another, quiet=as_json)  # fmt: skip
    if as_json:
        emit(node)
    else:
        say(_described(node))


def try_out(
    nodes: Annotated[
        int, typer.Argument(min=1, max=8, metavar="NODES", help="How many nodes.")
    ] = 2,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", show_default=False,
                     help="Of each node; by default cpu with its part of the processors."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Of the cluster.")] = 6379,
) -> None:  # fmt: skip
    """Start several nodes on this machine, to try out; gpud-ray down ends them."""
    from gpud_ray.placement.settings import Settings

    device = device or f"cpu:{max(1, len(os.sched_getaffinity(0)) // nodes)}"
    for number in range(nodes):
        first = ["--include-dashboard=false"] if number == 0 else []
        try:
            node = _start(None, None, (device,), port, Settings(), [*_SMALL, *first],
                          another=number > 0)  # fmt: skip
        except BaseException:
            if number:
                down()
            raise
        say(_described(node))
    say('in a program on this machine: ray.init("auto"), then gpud_ray.submit(...)')
    say("gpud-ray status shows the nodes, gpud-ray down ends them")


def down(as_json: JsonOption = False) -> None:
    """Take this machine out: end its agent, the gpud that up started, and Ray on it."""
    from gpud_ray.node import raylet

    running = raylet.noted()
    if not running:
        raise NoCluster("this machine is no node that gpud-ray up has started")
    with progress("ending this node", len(running), quiet=as_json) as step:
        # The first may be the one that has Ray's own state.
        for number, one in enumerate(reversed(running)):
            raylet.leave(one)
            raylet.end(one)
            step(number + 1)
    addresses = dict.fromkeys(str(one["address"]) for one in running)
    if as_json:
        emit({"ended": list(addresses), "nodes": len(running)})
    else:
        say(f"this machine is no node of {', '.join(addresses)} any more")


def status(
    address: AddressOption = None,
    why: Annotated[
        bool,
        typer.Option("--why", help="Also what each GPU's idle rate is made of."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the head, the nodes with how idle each is, and what items wait for."""
    connect(address)
    from gpud_ray.client import status as ask

    told = ask()
    if as_json:
        emit(told)
        return
    counts = told["counts"]
    say(
        f"head {told['head'][:8]} for {formatting.seconds(told['uptime_s'])}: "
        f"{counts['placed']:,} items placed, {told['waiting']:,} wait, "
        f"{counts['nodes_lost']:,} nodes lost; idle memory is its {told['memory']}"
    )
    print_table(_NODES, told["nodes"], "no node has reported yet")
    for reason, number in told["waits_for"].items():
        say(f"{number:,} wait{'s' if number == 1 else ''} for {reason}")
    if why:
        rows = [{"node": one["node"], **gpu} for one in told["nodes"] for gpu in one["inputs"]]
        print_table(_INPUTS, rows, "no node has a GPU")


def connect(address: str | None) -> None:
    """Connect this process to Ray: at an address, or where this machine is a node.

    Raises:
        NoCluster: there is none.
    """
    import ray

    from gpud_ray.node import raylet

    running = raylet.noted()
    where = address or (str(running[0]["address"]) if running else "auto")
    try:
        where = _found(where)
        _reach(where)
        with _watchdog(where):
            ray.init(address=where, namespace="gpud", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise NoCluster(
            f"no Ray cluster answers at {where}: {str(error).partition(chr(10))[0]}; "
            "gpud-ray up makes this machine a node"
        ) from None


def _found(address: str) -> str:
    """Return a cluster's host and port; of "auto" as Ray finds it.

    Raises:
        ConnectionError: there is none.
    """
    if address != "auto":
        return address
    from ray._private.services import canonicalize_bootstrap_address

    return str(canonicalize_bootstrap_address(address))


@contextmanager
def _watchdog(address: str) -> Iterator[None]:
    """End this process if Ray does not answer: it waits for ever, and no signal is heard then."""

    def end() -> None:
        text = f"gpud-ray: what listens at {address} has not answered as Ray for {_CONNECT_S:g} s\n"
        os.write(2, text.encode())
        os._exit(NO_DAEMON)

    timer = threading.Timer(_CONNECT_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _reach(address: str) -> None:
    """Raise an OSError or ValueError if nothing listens there; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _ANSWER_S).close()


# -- steps of up and down


def _announced(socket: str | None, devices: tuple[str, ...]) -> tuple[int, int]:
    """Return how many SMs and bytes the node's gpud has."""
    import gpud_client as gc

    session = gc.local(devices) if devices else gc.connect(socket)
    with session:
        return (
            sum(device.sms for device in session.devices),
            sum(device.memory for device in session.devices),
        )


def _start(
    address: str | None, gpud: str | None, devices: tuple[str, ...], port: int, settings: Settings,
    options: list[str], *, another: bool, quiet: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Start a node, and return what was started, as plain data."""
    with progress("starting a node", 3, quiet=quiet) as step:
        sms, memory = _announced(gpud, devices)
        step(1)
        from gpud_ray.node import raylet

        running = raylet.noted()
        if another and running and address is None:
            address = str(running[0]["address"])
        resources = {"gpud_sms": float(sms), "gpud_memory": float(memory)}
        variables = DaemonConfig(gpud, devices).variables()
        started = raylet.start(address, port, resources, variables, options, another=another)
        step(2)
        try:
            connect(started["address"])
            node = _begin(settings, started["name"])
        except BaseException:
            raylet.end(started)
            raise
        step(3)
    return {"node": node, "address": started["address"], **resources}


def _described(node: dict[str, Any]) -> str:
    sms, memory = int(node["gpud_sms"]), formatting.size(int(node["gpud_memory"]))
    return f"node {node['node'][:8]} of {node['address']}: {sms} SMs, {memory}"


def _begin(settings: Settings, name: str) -> str:
    """Make the head, if there is none, and this node's agent; return when it has reported."""
    import ray

    from gpud_ray.actors import node_named
    from gpud_ray.client import status as ask
    from gpud_ray.making import make_agent, make_head

    node = node_named(name)
    make_head(settings, node)
    agent = make_agent(node, None, settings)
    end_s = time.monotonic() + _READY_S
    while time.monotonic() < end_s:
        rows = {row["node"]: row for row in ask()["nodes"]}
        if rows.get(node, {}).get("state") == "ready":
            ray.shutdown()
            return node
        time.sleep(_POLL_S)
    problem = ray.get(agent.status.remote())["problem"]
    raise NoCluster(f"this node's gpud was not ready within {_READY_S:g} s: {problem}")
