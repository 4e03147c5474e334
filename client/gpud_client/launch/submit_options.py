"""The options of a submission, declared once: `Kernel.submit` and `Session.sequence` take them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, TypeVar, cast

import numpy as np

from gpud.units import Share
from gpud_client.devices import Device
from gpud_client.launch.job_base import JobBase
from gpud_client.launch.streams import StreamBase

__all__ = ["SubmitOptions", "as_ns", "complete", "takes_submit_options"]

_MOST_NS = (1 << 63) - 1

F = TypeVar("F", bound=Callable[..., Any])


class SubmitOptions(TypedDict, total=False):
    """The terms on which a job runs: options of `Kernel.submit` and `Session.sequence`.

    For annotations: ``def run(kernel: gc.Kernel, **options: Unpack[gc.SubmitOptions])``.

    Attributes:
        reservation: Run online, with at least this share: CapSM, or ``"25%"``.
        quota: Run offline, with at most this share. Neither: offline, the whole device.
        deadline: Seconds from now; orders waiting online jobs.
        timeout: Seconds that the job may run; then it is ended with `JobTimeout`.
        stream: Jobs of one stream run in order, and if one fails those behind it fail; None: the
            session's `default_stream`.
        after: Jobs that must have ended before, however they ended.
        device: On which device; None: where the arrays are, else where it was compiled first.
        weight: 1 to 1000: an offline job's weight when capacity is shared.
        exclusive: Reserve whole SMs on which no other job's blocks run until this job has ended.
            Rounded up to a multiple of `Device.exclusive_step`; such a job cannot be resized.
        wait: Whether to wait while the session has as many jobs that have not ended as it may, or
            the lane's ring is full; False: raise `LimitExceeded` instead.
    """

    reservation: Share | None
    quota: Share | None
    deadline: float | None
    timeout: float | None
    stream: StreamBase | None
    after: Iterable[JobBase]
    device: Device | int | None
    weight: int
    exclusive: bool
    wait: bool


_DEFAULTS: SubmitOptions = {
    "reservation": None,
    "quota": None,
    "deadline": None,
    "timeout": None,
    "stream": None,
    "after": (),
    "device": None,
    "weight": 1,
    "exclusive": False,
    "wait": True,
}


def complete(options: SubmitOptions) -> SubmitOptions:
    """Return the options with defaults for those that are not given.

    Raises:
        TypeError: there is no such option; the message has similar ones.
    """
    if not options:
        return _DEFAULTS
    whole: SubmitOptions = {**_DEFAULTS, **options}
    if len(whole) > len(_DEFAULTS):
        raise _unknown(options)
    return whole


def takes_submit_options(method: F) -> F:
    """Have ``help`` of a method with ``**options`` list each option, with its description."""
    own = inspect.signature(method)
    given = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    for name, default in _DEFAULTS.items():
        kind = inspect.Parameter.KEYWORD_ONLY
        annotation = SubmitOptions.__annotations__[name].__forward_arg__
        annotation = annotation.replace("Base", "")  # as people know them
        given.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    cast(Any, method).__signature__ = own.replace(parameters=given)
    text = inspect.getdoc(method) or ""
    attributes = (inspect.getdoc(SubmitOptions) or "").partition("Attributes:\n")[2]
    method.__doc__ = re.sub(r"    \*\*options: .*\n", lambda _: attributes.rstrip() + "\n", text)
    return method


def as_ns(what: str, seconds: float) -> int:
    """Convert seconds, given as the option ``what``, to nanoseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}")
    value = float(seconds)
    if not (math.isfinite(value) and value > 0) or value * 1e9 > _MOST_NS:
        raise ValueError(f"{what} is more than 0 seconds and finite, not {seconds!r}")
    return max(1, round(value * 1e9))


def _unknown(options: Mapping[str, Any]) -> TypeError:
    from difflib import get_close_matches

    wrong = next(name for name in options if name not in _DEFAULTS)
    near = get_close_matches(wrong, (*_DEFAULTS, "shared"))
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_DEFAULTS)}"
    if wrong == "shared":
        hint = "give it to each launch: kernel.call(..., shared=...)"
    return TypeError(f"a submission has no option {wrong!r}; {hint}")
