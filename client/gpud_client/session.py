"""The blocking client: `connect`, and sessions, arrays, modules and kernels whose methods block."""

from __future__ import annotations

import os
import weakref
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpud.wire.socket_path import socket_path
from gpud_client.arrays import ArrayBase, Values
from gpud_client.connection.channel import Channel
from gpud_client.connection.daemon_socket import connect_socket
from gpud_client.connection.faces import Blocking
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.launch.jobs import Job
from gpud_client.launch.kernels import KernelBase
from gpud_client.launch.lanes import Lane
from gpud_client.launch.modules import ModuleBase, SymbolBase
from gpud_client.launch.streams import Stream
from gpud_client.launch.unretrieved import log_cancelled
from gpud_client.session_base import SessionBase
from gpud_client.workloads.faces import BlockingTurn, BlockingWorkload

_DLPACK_HOST = 1

__all__ = ["Array", "Kernel", "Module", "Session", "Symbol", "Turn", "Workload", "connect"]


class Array(ArrayBase, Blocking):
    """An array in a device's memory; made by `Session.array`, `Session.empty`, `Session.zeros`.

    Freed when it is garbage collected; jobs that were submitted with it keep its memory until they
    have ended. Thread-safe.

    On a CPU device ``numpy.asarray(array)``, ``numpy.from_dlpack(array)`` and
    ``torch.from_dlpack(array)`` make views without a copy, as `numpy` does; they keep the memory.
    On a GPU ``cupy.asarray(array)`` and ``torch.as_tensor(array, device="cuda")`` do, see
    `__cuda_array_interface__`; ``numpy.asarray`` copies there.
    """

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's protocol for views without a copy; see `numpy`, which describes them."""
        if self._copied:
            raise AttributeError(f"the memory of {self._device.name} is in another process")
        interface: dict[str, Any] = self.numpy().__array_interface__
        # Who reads this keeps this array, and not the view: `free` must leave the memory.
        self._exported = self._allocation
        return interface

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA's protocol, version 3, for CuPy, Numba and PyTorch, without a copy.

        The first time the array's memory is mapped into this process, where it has another address
        than `ptr`. Waits for the same jobs as `get`. Later jobs see what this process's own kernels
        have written before the job was submitted: synchronise these, and `Job.result` before theirs
        use what jobs write. It stays mapped as long as this array is there.

        Raises:
            AttributeError: The memory cannot be mapped here: the array is not on a GPU, or is a
                workload's, or this process or the driver cannot. Frameworks then copy the values.
            ValueError: The array was freed.
            DeviceLost: The device lost the values; write new ones with `set`.
        """
        if not self._copied:
            raise AttributeError(
                f"{self._device.name} has no GPU memory: use numpy(), __array_interface__ or DLPack"
            )
        from gpud_client.adapters.mapped_array import cuda_interface  # only who has a GPU needs it

        return cuda_interface(self)

    def __dlpack__(self, **options: Any) -> Any:
        """Export a view without a copy, as `numpy.from_dlpack` and `torch.from_dlpack` want it."""
        if self._copied:
            raise BufferError(
                f"the memory of {self._device.name} belongs to the daemon's process and cannot be "
                "exported: copy the values with get() and set()"
            )
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's kind and number of the device that has the memory: the host."""
        if self._copied:
            raise BufferError(f"the memory of {self._device.name} cannot be exported")
        return _DLPACK_HOST, 0

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Values:
        values = self.numpy() if copy is False else self.get()
        if dtype is None or np.dtype(dtype) == values.dtype:
            return values
        if copy is False:
            raise ValueError(f"an array of {values.dtype} becomes {np.dtype(dtype)} by a copy only")
        return values.astype(dtype)

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("an array without extents has no length")
        return self._shape[0]


class Symbol(SymbolBase, Blocking):
    """A variable of a module; made by `Module.symbol`.

    Attributes:
        name: Its name in the PTX.
        nbytes: Its size.
        dtype: Of an element; None: it is read and written as bytes.
        shape: Its shape; None: it is read and written as bytes.
    """


class Kernel(KernelBase["Module", Job], Blocking):
    """A kernel, compiled and rewritten; made by `Session.kernel` or `Module.kernel`.

    Thread-safe.
    """


class Module(ModuleBase[Kernel, Symbol], Blocking):
    """A compiled source: its kernels, and the variables that they share.

    Made by `Session.module`; `Kernel.module` is the one of a kernel. Its variables are the
    session's own, and keep their values between jobs.
    """

    _kernel_class = Kernel
    _symbol_class = Symbol


class Turn(BlockingTurn[Array]):
    """An iteration of a workload, with its temporary memory; made by `Workload.iteration`.

    Attributes:
        number: Of the iteration, from 0.
        new: Whether a turn began with it: others may have had the device since the last one.
    """


class Workload(BlockingWorkload[Array, Turn]):
    """A loop whose iterations take turns with a device's memory; made by `Session.workload`.

    Its own arrays are persistent: they stay at their addresses until the workload is closed. Those
    that an iteration makes are temporary, and cannot be used when it has ended.

        with gpu.workload(persistent="2GiB", temporary="1GiB") as work:
            weights = work.array(values)
            for turn in work.iterations(100):
                hidden = turn.empty(n, np.float32)
                forward.submit(grid, block, (weights, hidden))
    """

    _turn_class = Turn


class Session(SessionBase[Array, Kernel, Module, Job, Workload, Lane, Stream], Blocking):
    """A connection to the daemon; made by `connect` or `local`. Thread-safe.

    Use it in a ``with`` block, or close it. Its arrays, kernels and jobs cannot be used afterwards.
    Leaving the block does not wait: jobs that have not ended are cancelled, as their results could
    not be read any more, and the log names them. Wait for jobs with `Job.result`.

    A forked process must connect anew.
    """

    _channel: Channel
    _array_class = Array
    _module_class = Module
    _job_class = Job
    _workload_class = Workload
    _lane_class = Lane
    _stream_class = Stream

    def __init__(
        self,
        path: str,
        program: str | None = None,
        reconnect: bool | float = False,
        check: bool = False,
    ) -> None:
        super().__init__(ProtocolState(), path, program)
        self._channel = Channel(connect_socket(path), self._core, path)
        self._finalizer: weakref.finalize[..., Any] = weakref.finalize(self, self._channel.abandon)
        try:
            self._make_checking(check, reconnect)
            self._make_resumable(reconnect)
            self._channel.run(self._open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            log_cancelled(self._core.jobs)
        self.close()

    def close(self) -> None:
        """End the session: jobs that have not ended are cancelled, arrays are freed.

        Does not wait for jobs. May be called twice.
        """
        self._channel.close()
        self._finalizer()


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    reconnect: bool | float = False,
    check: bool = False,
) -> Session:
    """Connect to the daemon of this machine.

    Args:
        path: Of its socket; None: ``$GPUD_SOCKET``, else ``$XDG_RUNTIME_DIR/gpud/gpud.sock``.
        name: This client's name in ``gpuctl``; None: the program's name.
        reconnect: Whether the session goes on with the next daemon when this one ends, as at a
            restart; it waits a minute for that, or this many seconds. Kernels are compiled again,
            arrays on a CPU device keep address and values, and jobs that had not begun are
            submitted again. Jobs that had begun fail, arrays on a GPU and variables of modules
            lose their values, and the log names them.
        check: Whether kernels are checked while they run, on the CPU device: accesses outside of an
            array, to freed arrays and to what was never written, and races. A job in which
            something is found raises `gpud_client.CheckFailed`. Kernels run many times slower, and
            arrays need 18 times the memory.

    Raises:
        ConnectionLost: No daemon listens there; the message says how to start one.
    """
    return Session(str(socket_path(path)), name, reconnect, check)
