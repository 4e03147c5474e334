"""``gpud-ray up``, ``down`` and ``status``: this machine as a node, and what the cluster does."""

from __future__ import annotations

import socket
import time
from typing import Annotated, Any

import typer

from gpud_client.cli import formatting
from gpud_client.cli.output import Column, JsonOption, emit, print_table, say
from gpud_ray.cli.progress import progress
from gpud_ray.errors import NoCluster
from gpud_ray.node.config import DEVICES_VARIABLE, DaemonConfig

__all__ = ["AddressOption", "connect", "down", "status", "up"]

_ANSWER_S = 5.0
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
    with progress("starting this node", 3, quiet=as_json) as step:
        sms, memory = _announced(gpud, tuple(device or ()))
        step(1)
        from gpud_ray.node import raylet

        resources = {"gpud_sms": float(sms), "gpud_memory": float(memory)}
        variables = DaemonConfig(gpud, tuple(device or ())).variables()
        started = raylet.start(address, port, resources, variables, ray_option or [])
        step(2)
        try:
            connect(started["address"])
            node = _begin(settings)
        except BaseException:
            raylet.end(started)
            raise
        step(3)
    if as_json:
        emit({"node": node, "address": started["address"], **resources})
    else:
        say(f"node {node[:8]} of {started['address']}: {sms} SMs, {formatting.size(memory)}")


def down(as_json: JsonOption = False) -> None:
    """Take this machine out: end its agent, the gpud that up started, and Ray on it."""
    from gpud_ray.node import raylet

    running = raylet.noted()
    if running is None:
        raise NoCluster("this machine is no node that gpud-ray up has started")
    with progress("ending this node", 2, quiet=as_json) as step:
        raylet.leave(running)
        step(1)
        raylet.end(running)
        step(2)
    if as_json:
        emit({"ended": running["address"]})
    else:
        say(f"this machine is no node of {running['address']} any more")


def status(address: AddressOption = None, as_json: JsonOption = False) -> None:
    """Show the head and the nodes, with how idle each is."""
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
        f"{counts['nodes_lost']:,} nodes lost; idle rate read as {told['reading']}"
    )
    print_table(_NODES, told["nodes"], "no node has reported yet")


def connect(address: str | None) -> None:
    """Connect this process to Ray: at an address, or where this machine is a node.

    Raises:
        NoCluster: there is none.
    """
    import ray

    from gpud_ray.node import raylet

    running = raylet.noted()
    where = address or (running["address"] if running else "auto")
    try:
        if where != "auto":
            _reach(where)
        ray.init(address=where, namespace="gpud", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise NoCluster(
            f"no Ray cluster answers at {where}: {str(error).partition(chr(10))[0]}; "
            "gpud-ray up makes this machine a node"
        ) from None


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


def _begin(settings: Any) -> str:
    """Make the head, if there is none, and this node's agent; return when it has reported."""
    import ray

    from gpud_ray.client import status as ask
    from gpud_ray.making import make_agent, make_head

    node: str = ray.get_runtime_context().get_node_id()
    make_head(settings, node)
    agent = make_agent(node, None, settings)
    end_s = time.monotonic() + _READY_S
    while time.monotonic() < end_s:
        rows = {row["node"]: row for row in ask()["nodes"]}
        if rows.get(node, {}).get("state") == "ready":
            return node
        time.sleep(_POLL_S)
    problem = ray.get(agent.status.remote())["problem"]
    raise NoCluster(f"this node's gpud was not ready within {_READY_S:g} s: {problem}")
