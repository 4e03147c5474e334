"""Several machines with gpud, on Ray: each item runs on the node whose GPUs are the most idle.

    import gpud_ray, ray

    ray.init("auto")
    call = gpud_ray.KernelCall(
        source=SOURCE, kernel="saxpy", grid=64, block=256,
        args=(2.0, x, gpud_ray.InOut(y), len(x)),
    )
    y = ray.get(gpud_ray.submit(call))

``gpud-ray up`` makes a machine a node. Importing this package does not load Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpud_ray.client import local_session, status, submit, workload_node
    from gpud_ray.errors import Attempt, ItemFailed, NoCluster, Report
    from gpud_ray.items import InOut, KernelCall, Out
    from gpud_ray.placement.settings import Settings

_HOMES = {
    "gpud_ray.client": ("local_session", "status", "submit", "workload_node"),
    "gpud_ray.errors": ("Attempt", "ItemFailed", "NoCluster", "Report"),
    "gpud_ray.items": ("InOut", "KernelCall", "Out"),
    "gpud_ray.placement.settings": ("Settings",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Attempt",
    "InOut",
    "ItemFailed",
    "KernelCall",
    "NoCluster",
    "Out",
    "Report",
    "Settings",
    "__version__",
    "local_session",
    "status",
    "submit",
    "workload_node",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
