"""The device host process: ``python -m gpud.device.host --device DEVICE --fd N``.

The process ends when the other end of the socket is closed, whatever its kernels do at the time.
Its standard output and error go to the daemon's log. Only the front ends it: by closing the socket,
or by SIGKILL.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NamedTuple

from gpud.device.host.host import Host
from gpud.device.host.link import Link
from gpud.device.interface import Device
from gpud.device.spec import DeviceSpec, parse_device
from gpud.errors import DeviceLost, GpudError, InvalidArgument

__all__ = ["main"]

_SWITCH_INTERVAL_S = 0.0001
"""Python's switch interval: at its default of 5 ms, a command waits that long for the GIL while
another thread parses a program."""

_GC_OBJECTS = 20_000  # between collections
_PR_SET_PDEATHSIG = 1
_LINE_BUFFERED = 1  # _IOLBF


def main(arguments: list[str] | None = None) -> int:
    """Serve until the front closes the socket; returns only if the device could not be opened."""
    parser = argparse.ArgumentParser(prog="python -m gpud.device.host", description=__doc__)
    parser.add_argument("--device", required=True, help="cpu, cpu:8, cpu:8@75, cuda:0")
    parser.add_argument("--fd", required=True, type=int, help="the inherited socket")
    parser.add_argument("--compile-seconds", type=float, default=60.0, help="for one kernel")
    parser.add_argument("--compile-memory-bytes", type=int, default=0, help="0 for no limit")
    parser.add_argument("--cache-dir", help="of programs; machine code is kept beside it; '': none")
    parser.add_argument("--lane-hold-seconds", type=float, default=0.0002, help="before it lends")
    parser.add_argument("--dump", help="the folder to write LLVM IR, or loaded PTX, to")
    parser.add_argument("--dump-kernels", default="*", help="names of kernels, with commas between")
    options = parser.parse_args(arguments)
    _prepare_process()
    try:
        settings = DeviceSettings(
            options.compile_seconds,
            options.compile_memory_bytes,
            options.dump,
            options.dump_kernels,
            options.cache_dir,
        )
        device = open_device(parse_device(options.device), settings)
        connection = socket.socket(fileno=options.fd)
    except (GpudError, OSError, ValueError) as error:
        print(f"device host: {error}", file=sys.stderr)  # noqa: T201
        return 2
    # What is loaded by now stays for good: take it out of garbage collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)
    status = 0
    try:
        host = Host(device, Link(connection), lane_hold_s=options.lane_hold_seconds)
        end_after_errors_of_threads(host)
        host.run()
    except Exception:  # noqa: BLE001 - a bug; the daemon's log gets it, and a new host comes
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: SM threads may be in kernels that never end, and it would wait for them.
    os._exit(status)


class DeviceSettings(NamedTuple):
    """Settings with which a device is opened.

    Attributes:
        compile_seconds, compile_memory_bytes: limits of the CPU device's compiler process for one
            kernel; 0 bytes: no limit.
        dump, dump_kernels: arguments of `gpud.compiler.dump_folder.DumpFolder`, the second with
            commas; None: nothing is dumped.
        cache_dir: of compiled programs, beside which the CPU device's machine code is kept; None:
            the default one; "": none. While something is dumped, nothing is taken from it.
    """

    compile_seconds: float = 60.0
    compile_memory_bytes: int = 0
    dump: str | None = None
    dump_kernels: str = "*"
    cache_dir: str | None = None


def open_device(spec: DeviceSpec, settings: DeviceSettings) -> Device:
    """Open the device that ``spec`` names.

    Raises:
        ValueError: there is no such device.
        InvalidArgument: there is no such device, or it cannot be used.
        MissingDependency: a package that it needs is not installed.
    """
    if spec.kind == "cuda":
        from gpud.compiler.dump_folder import DumpFolder
        from gpud.device.cuda.device import CUDADevice
        from gpud.device.cuda.driver.calls import DriverError

        kernels = settings.dump_kernels.split(",")
        folder = None if settings.dump is None else DumpFolder(Path(settings.dump), kernels)
        try:
            return CUDADevice(spec.number, dump=folder)
        except (DriverError, DeviceLost) as error:
            raise InvalidArgument(
                f"{spec} cannot be opened: {error}. Another process may have it to itself or have "
                "its memory: see nvidia-smi, and its compute mode with nvidia-smi -q -d COMPUTE"
            ) from error
    from gpud.compiler.cache import Cache, machine_code_folder
    from gpud.device.host.native_compiler import NativeCompiler

    dump = (
        ()
        if settings.dump is None
        else ("--dump", settings.dump, "--dump-kernels", settings.dump_kernels)
    )
    place = machine_code_folder("" if dump else settings.cache_dir)
    disk = None if place is None else Cache(place)
    compiler = NativeCompiler(settings.compile_seconds, settings.compile_memory_bytes, dump, disk)
    compiler.warm_up()  # it starts while this process imports the device
    from gpud.device.cpu.device import CPUDevice

    if spec.capability is None:
        return CPUDevice(spec.number, compiler=compiler)
    return CPUDevice(spec.number, capability=spec.capability, compiler=compiler)


def end_after_errors_of_threads(host: Host) -> None:
    """Have the host end after an error in a thread, which would leave jobs waiting for ever."""

    def end(unexpected: threading.ExceptHookArgs) -> None:
        if unexpected.exc_value is not None:
            host.lost(unexpected.exc_value)

    threading.excepthook = end


def _prepare_process() -> None:
    # A crash in native code leaves a traceback in the log.
    faulthandler.enable()
    # A signal to the process group must end the daemon alone: it needs its hosts while it drains.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    library = ctypes.CDLL(None)
    # The front's death closes the socket; this also ends a host that no longer reads it.
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The CUDA driver writes the output of kernels through the C library, which would buffer it
    # where the log is no terminal, and lose it at the end of this process.
    library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, _LINE_BUFFERED, 0)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
