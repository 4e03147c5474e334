"""A model of the CUDA driver that replaces ``cuda.bindings.driver`` in tests without a GPU.

Problem: there is no GPU where most tests run; failures of one (a call that fails, blocks that leave
late, a lost context) cannot be produced on demand anyway; and a call that the driver forbids must
be noticed before there is a GPU.

Approach: one model of the driver's state, in parts, and two ways to run launches.

``model_driver``    calls by name: statuses, failures on demand, a lost context, a log of calls
``handles``         handles that were created and not destroyed, of the bindings' own types
``contexts``        the device, contexts and which of them is current in a thread
``memory``          allocations, page-locked memory, reserved addresses and mappings
``streams``         streams, events, host functions, copies in stream order
``graphs``          graphs that are captured from streams
``modules``         programs, functions, launches and their parameters
``entry_points``    addresses of functions, for native code
``green_contexts``  green contexts
``blocks``          what blocks of a `SteppedDriver` do, by kernel
``stepped_driver``  `SteppedDriver`: time passes only when a test steps it, and blocks do what
                    rewritten kernels do, reduced to what the device sees
``cpu_driver``      `CPUDriver`: everything happens at once, and kernels run on the CPU device
``site``            replaces the bindings with `CPUDriver` in whole processes

Functions are methods of the parts with the names that they have in the bindings; enumerations and
structures are the real ones, and so are the types of handles: what cannot be done with a
``CUdeviceptr`` fails here, too.

Terms: a *misuse* is what the driver's documentation forbids or leaves undefined: a handle of
another kind or a destroyed one, memory freed twice or while something uses it, a context that is
not current, a launch without parameters. It is an `AssertionError`, never a status, so that no code
can mistake it for a failure to handle. Errors that the driver reports with a status, such as an
invalid address, have that status here.

The model has no clock for the bus, for atomics on host memory or for anything else that a GPU does:
of what is measured over it, only the host's own time between driver calls means something
(``bench/bench_cuda_host.py``). Results of `bench.gpu` over it mean nothing but that they are there.

Facts: CUDA Driver API 13.0. What it does not say is not modelled: how long anything takes, and
which calls wait for kernels beyond those it names.
"""

from tests.driver_model.cpu_driver import CPUDriver
from tests.driver_model.model_driver import Misuse
from tests.driver_model.stepped_driver import SteppedDriver

__all__ = ["CPUDriver", "Misuse", "SteppedDriver"]
