"""A model of the CUDA driver: what tests without a GPU have in place of ``cuda.bindings.driver``.

Problem: there is no GPU where most tests run; what goes wrong on one (a call that fails, blocks
that leave late, a lost context) cannot be had on demand anyway; and what a driver forbids must not
pass unseen until there is one.

Approach: one model of the driver's state, in parts, and two ways to run what is launched.

``model_driver``    calls by name: statuses, failures on demand, a lost context, what was called
``handles``         what was made and not taken back, of the bindings' own types
``contexts``        the device, contexts and which of them is current in a thread
``memory``          allocations, page-locked memory, reserved addresses and what is mapped there
``streams``         streams, events, graphs, host functions, copies in stream order
``modules``         programs, functions, launches and their parameters
``green_contexts``  green contexts
``stepped_driver``  `SteppedDriver`: everything happens when a test says so, and blocks do what
                    rewritten kernels do, reduced to what the device sees
``cpu_driver``      `CPUDriver`: everything happens at once, and kernels run on the CPU device
``site``            puts `CPUDriver` where the bindings are, in whole processes

Functions are methods of the parts with the names that they have in the bindings; enumerations and
structures are the real ones, and so are the types of handles: what cannot be done with a
``CUdeviceptr`` fails here, too.

Terms: a *misuse* is what the driver's documentation forbids or leaves undefined: a handle of
another kind, one that was given back, memory given back twice or while something uses it, a context
that is not current, a launch that has no parameters. It is an `AssertionError`, never a status:
nobody may take it for a failure to be handled. What the driver answers with a status, such as an
address that nobody has, is a status here.

Facts: CUDA Driver API 13.0. What it does not say is not modelled: how long anything takes, and
which calls wait for kernels beyond those it names.
"""

from tests.driver_model.cpu_driver import CPUDriver
from tests.driver_model.model_driver import Misuse
from tests.driver_model.stepped_driver import SteppedDriver

__all__ = ["CPUDriver", "Misuse", "SteppedDriver"]
