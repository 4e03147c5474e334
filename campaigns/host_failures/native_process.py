"""A process that makes machine code, and does terrible things with kernels of certain names.

    python -m campaigns.host_failures.native_process --fd N --memory-bytes B

``llvm_segfaults`` ends it by SIGSEGV, ``llvm_never_ends`` never returns, ``llvm_eats_all`` raises
MemoryError, ``llvm_dies_once`` ends it by SIGKILL unless there is a file of that name in the folder
that the environment gives, and makes that file. All others are made as they should be.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from campaigns.host_failures.host_process import FOLDER
from gpud.compiler.dump_folder import DumpFolder
from gpud.device.cpu.program.compile_request import CompileRequest, CompileResult
from gpud.device.cpu.program.kernel_compiler import compile_kernel
from gpud.device.host import native_compile_process


def terrible(wanted: CompileRequest, dumps: DumpFolder | None = None) -> CompileResult:
    """Make it, or not."""
    match wanted.entry:
        case "llvm_segfaults":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "llvm_eats_all":
            raise MemoryError
        case "llvm_never_ends":
            time.sleep(10**6)
        case "llvm_dies_once":
            mark = Path(os.environ[FOLDER], "llvm_dies_once")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    return compile_kernel(wanted, dumps)


if __name__ == "__main__":
    vars(native_compile_process)["compile_kernel"] = terrible
    sys.exit(native_compile_process.main())
