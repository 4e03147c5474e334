"""``python -m gpud.device.cuda.probe INDEX``: checks for a GPU that gpud can use.

Runs as a process of its own, so that the caller loads nothing of CUDA; it makes no context. Prints
the error that a device host would end with, as JSON, or null.
"""

from __future__ import annotations

import json
import sys

from gpud.device.cuda.driver.calls import open_driver
from gpud.errors import GpudError, InvalidArgument

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Check for the GPU and print the error, if there is one."""
    problem: GpudError | None = None
    try:
        _look(int(arguments[0]))
    except GpudError as error:
        problem = error
    print(json.dumps(None if problem is None else problem.to_wire()))  # noqa: T201
    return 0


def _look(index: int) -> None:
    driver = open_driver()
    count = int(driver.call("cuDeviceGetCount"))
    if not index < count:
        raise InvalidArgument(
            f"there is no cuda:{index}: the driver shows {count} GPU{'s' * (count != 1)} here"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
