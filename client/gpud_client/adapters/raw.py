"""Kernels that are called as ``cupy.RawKernel`` and ``cupy.RawModule`` are.

A program that has its kernels in CuPy's raw classes runs them through gpud once it imports these::

    from gpud_client.adapters.raw import RawKernel

    add = RawKernel(source, "add")
    add((blocks,), (threads,), (x, y, np.int32(n)), shared_mem=0)

Arguments are gpud's arrays, CuPy arrays that were made of these by ``cupy.asarray`` (which copies
nothing on a GPU), NumPy scalars and numbers. As CuPy's, a call returns before its kernel has run;
what went wrong is raised by whatever uses the arrays next, or by `synchronize`.

Source: CuPy 14, ``cupy.RawKernel`` and ``cupy.RawModule``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpud.errors import InvalidArgument
from gpud_client.launch.jobs import Job
from gpud_client.session import Array, Kernel, Module, Session, Symbol, connect

__all__ = ["RawKernel", "RawModule", "synchronize", "use"]

_lock = threading.Lock()
_default: Session | None = None
_called: list[Job] = []
_MOST_CALLED = 256


def use(session: Session | None) -> None:
    """Have raw kernels and modules from now on run in a session, instead of one of their own.

    Args:
        session: a session; None: one that is opened when it is first needed.
    """
    global _default  # noqa: PLW0603  (programs that exist have no place to hold one)
    with _lock:
        _default = session


def synchronize() -> None:
    """Wait for all kernels that were called; raise what the first that failed has failed with."""
    global _called
    with _lock:
        jobs, _called = _called, []
    failed = [error for error in (job.exception() for job in jobs) if error is not None]
    if failed:
        raise failed[0]


def _note(job: Job) -> None:
    """Keep a job for `synchronize`, and drop those that are done."""
    global _called  # noqa: PLW0603
    with _lock:
        if len(_called) >= _MOST_CALLED:
            _called = [one for one in _called if not one.done() or one.exception() is not None]
        _called.append(job)


def _session() -> Session:
    global _default  # noqa: PLW0603
    with _lock:
        if _default is None or _default.closed:
            _default = connect()
        return _default


class RawModule:
    """A source with several kernels, which share variables; see ``cupy.RawModule``.

    Args:
        code: CUDA C++ or PTX as text, or an image as bytes; exclusive with ``path``.
        path: Of a file with PTX, or a fat binary.
        options: For NVRTC.
        name_expressions: Kernels that are instances of templates.
        session: In which they run; None: see `use`.

    Raises:
        CompileError: The source does not compile, when a function is first asked for.
        ValueError: Neither ``code`` nor ``path`` is given, or both are.
    """

    def __init__(
        self,
        code: str | bytes | None = None,
        *,
        path: str | None = None,
        options: Sequence[str] = (),
        name_expressions: Sequence[str] | None = None,
        session: Session | None = None,
        **others: Any,
    ) -> None:
        if (code is None) == (path is None):
            raise ValueError("give code or path: a source as text, or a file with PTX")
        _check(others)
        self.code, self.file_path = code, path
        self.options = tuple(options)
        self.name_expressions = tuple(name_expressions or ())
        self._chosen = session
        self._compiled: Module | None = None
        self._lock = threading.Lock()

    def compile(self, log_stream: Any = None) -> None:
        """Compile it now, and write the compiler's log to a stream."""
        log = self._module.log
        if log_stream is not None:
            log_stream.write(log)

    def get_function(self, name: str) -> RawKernel:
        """Return a kernel of the module."""
        made = RawKernel.__new__(RawKernel)
        made._of(self, name)
        return made

    def get_global(self, name: str) -> Symbol:
        """Return a ``__device__`` or ``__constant__`` variable, with ``get`` and ``set``."""
        return self._module.symbol(name)

    @property
    def _module(self) -> Module:
        with self._lock:
            if self._compiled is None:
                source: Any = self.code
                if self.file_path is not None:
                    source = Path(self.file_path).read_bytes()
                session = self._chosen or _session()
                self._compiled = session.module(source, self.name_expressions, self.options)
            return self._compiled


class RawKernel:
    """A kernel; see ``cupy.RawKernel``.

    Args:
        code: CUDA C++ or PTX as text, or an image as bytes.
        name: Of the kernel: in C++, if it is ``extern "C"`` or unique, or mangled.
        options: For NVRTC.
        session: In which it runs; None: see `use`.

    Raises:
        CompileError, KernelNotFound, KernelRejected: When it is first called.
    """

    def __init__(
        self,
        code: str | bytes,
        name: str,
        options: Sequence[str] = (),
        *,
        session: Session | None = None,
        **others: Any,
    ) -> None:
        _check(others)
        instances = (name,) if "<" in name else ()
        self._of(
            RawModule(code, options=options, name_expressions=instances, session=session), name
        )

    def _of(self, module: RawModule, name: str) -> None:
        self.name = name
        self._raw = module
        self._found: Kernel | None = None

    @property
    def code(self) -> str | bytes | None:
        """Its source."""
        return self._raw.code

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        return self._raw.options

    @property
    def kernel(self) -> Kernel:
        """The kernel as gpud has it; compiles it."""
        if self._found is None:
            self._found = self._raw._module.kernel(self.name)
        return self._found

    def compile(self, log_stream: Any = None) -> None:
        """Compile it now, and write the compiler's log to a stream."""
        self._raw.compile(log_stream)

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        **others: Any,
    ) -> None:
        """Launch it: ``grid`` blocks of ``block`` threads.

        Args:
            grid: Blocks in x, y, z.
            block: Threads of a block in x, y, z.
            args: Arrays and scalars.
            shared_mem: Dynamic shared memory of a block, in bytes.
            **others: CuPy's other options; those that would change something are refused.

        Raises:
            TypeError, ValueError: An argument does not fit its parameter, or is in no memory that
                gpud knows.
            GpudError: As for any launch.
        """
        _check(others)
        kernel = self.kernel
        values = tuple(map(_argument, args))
        _note(kernel.submit(tuple(grid), tuple(block), values, shared=shared_mem))

    def __repr__(self) -> str:
        return f"<RawKernel {self.name}>"


_KNOWN = {
    "backend": ("nvrtc",),
    "translate_cucomplex": (False,),
    "enable_cooperative_groups": (False, True),
    "jitify": (False,),
}


def _check(others: dict[str, Any]) -> None:
    """Refuse options of CuPy's that mean something else than gpud does."""
    for name, value in others.items():
        if name not in _KNOWN:
            raise TypeError(f"unexpected argument {name!r}")
        if value not in _KNOWN[name]:
            raise InvalidArgument(
                f"{name}={value!r} is not supported: sources are compiled with NVRTC as they are"
            )


def _argument(value: Any) -> Any:
    """Return a CuPy array's memory as gpud has it; everything else as it is."""
    data = getattr(value, "data", None)
    memory: Any = getattr(data, "mem", None)
    if data is None or memory is None or isinstance(value, Array):
        return value
    owner = getattr(memory, "_owner", None)
    if not isinstance(owner, Array):
        raise TypeError(
            f"the array of shape {value.shape} is in CuPy's own memory, out of reach of gpud's "
            "kernels: make it of one of gpud's, cupy.asarray(gpu.empty(shape, dtype))"
        )
    offset = int(data.ptr) - int(memory.ptr)
    return owner if offset == 0 else owner.ptr + offset
