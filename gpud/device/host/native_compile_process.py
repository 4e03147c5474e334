"""The compiler process of a CPU device: runs LLVM outside the device host.

``python -m gpud.device.host.native_compile_process --fd N`` with N a connected stream socket, whose
other end is `gpud.device.host.native_compiler`.

Properties:
    answers_once: a request that does not end the process has one answer; errors are GpudErrors;
    bounded: its address space is limited to ``memory_bytes``;
    ends_with_its_host: when the other end closes the process ends, even in the middle of LLVM.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from contextlib import suppress
from pathlib import Path

from gpud.compiler.dump_folder import DumpFolder
from gpud.compiler.process.child_process import (
    as_gpud_error,
    exit_on_disconnect,
    limit_memory,
    write_all,
)
from gpud.device.cpu.abi.linked_memory import LinkedMemory
from gpud.device.cpu.program.compile_request import CompileRequest
from gpud.device.cpu.program.kernel_compiler import compile_kernel
from gpud.device.host.native_messages import (
    MAX_FRAME_BYTES,
    NATIVE_PROTOCOL,
    Made,
    Make,
    NotMade,
    Ready,
)
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender

__all__ = ["answer", "main"]

_READ_BYTES = 1 << 18


def main(arguments: list[str] | None = None) -> int:
    """Answer requests until the other end closes; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpud.device.host.native_compile_process")
    parser.add_argument("--fd", type=int, required=True, help="a connected stream socket")
    parser.add_argument("--memory-bytes", type=int, default=0, help="0 for no limit")
    parser.add_argument("--dump", type=Path, help="the folder to write LLVM IR to")
    parser.add_argument("--dump-kernels", default="*", help="names of kernels, with commas between")
    options = parser.parse_args(arguments)
    limit_memory(options.memory_bytes)
    os.set_blocking(options.fd, True)
    exit_on_disconnect(options.fd)
    dumps = options.dump and DumpFolder(options.dump, options.dump_kernels.split(","))
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    with suppress(ConnectionError):  # the host went away during an answer
        write_all(options.fd, NATIVE_PROTOCOL.encode(Ready()))
        while data := os.read(options.fd, _READ_BYTES):
            decoder.feed(data)
            for body in decoder.frames():
                asked = NATIVE_PROTOCOL.decode(body, Sender.CLIENT)
                write_all(options.fd, NATIVE_PROTOCOL.encode(answer(asked, dumps)))
    return 0


def answer(asked: Make, dumps: DumpFolder | None = None) -> Made | NotMade:
    """Compile a kernel. Blocks; raises nothing."""
    arena, heap = (None if one is None else LinkedMemory(*one) for one in (asked.arena, asked.heap))
    x, y, z = asked.block
    try:
        wanted = CompileRequest(asked.text, asked.entry, (x, y, z), arena, heap)
        native = compile_kernel(wanted, dumps)
        generated = dataclasses.asdict(native.generated)
        del generated["ir"]
        return Made(generated, native.code)
    except Exception as error:  # noqa: BLE001 - every error goes to the host
        return NotMade(as_gpud_error(error).to_wire())


if __name__ == "__main__":
    sys.exit(main())
