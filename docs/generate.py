"""Writes the pages of docs/ that derive from the code: ``make docs``.

But for those that only the site has, `INTERNAL`. Each page is a function that returns its text.
tests/unit/test_docs.py holds that the committed pages are what these functions return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from docs.generate_api import compiler_page, device_page
from docs.generate_cli import gpuctl_page, gpud_page
from docs.generate_client import client_page
from docs.generate_config import config_page
from docs.generate_lifecycles import lifecycles_page
from docs.generate_protocol import host_protocol_page, protocol_page, task_protocol_page
from docs.generate_tables import control_words_page, forms_page, ptx_page
from gpud.errors import REJECTIONS, GpudError, error_classes
from gpud.telemetry.metrics import METRICS

DOCS = Path(__file__).parent

ERRORS_HEAD = """\
# Errors

<!-- Written by docs/generate.py from gpud/errors/: change those. -->

Everything that gpud reports derives from `GpudError`. An error has a stable `code`, which is what
travels between processes; a message that shows the offending value and says what to do; and fields
for programs. Who has to act is in the type: `except CallerError` catches what the request or the
kernel must change, `DaemonError` what is wrong with gpud or its installation, `DeviceError` what is
wrong with the device. Where Python has an exception for the situation, such as `ValueError` or
`TimeoutError`, the error is one of those too.

A code is never changed and never used again for something else. An error with a code that the
receiver does not know arrives as `GpudError`, with its message.
"""

ERRORS_FOOT = """\
## Reasons for `KernelRejected`

| reason | the kernel |
| --- | --- |
{reasons}
"""


def errors_page() -> str:
    """Return the reference page of the error tree."""
    listed = [cls for cls in error_classes() if cls is not GpudError]
    tree = "\n".join(_tree(GpudError, 0))
    sections = "\n".join(_section(cls) for cls in sorted(listed, key=lambda cls: cls.__name__))
    reasons = "\n".join(f"| `{code}` | {meaning} |" for code, meaning in REJECTIONS.items())
    foot = ERRORS_FOOT.format(reasons=reasons)
    return f"{ERRORS_HEAD}\n```\n{tree}\n```\n\n{sections}\n{foot}"


def _tree(cls: type[GpudError], depth: int) -> Iterator[str]:
    """Draw a class and those below it, each under the first of its bases."""
    yield f"{'    ' * depth}{cls.__name__}"
    for child in sorted(error_classes(), key=lambda child: child.__name__):
        if child.__bases__[0] is cls:
            yield from _tree(child, depth + 1)


def _section(cls: type[GpudError]) -> str:
    kinds = " and a ".join(f"`{base.__name__}`" for base in cls.__bases__)
    blame = f"the {cls.blame}" if cls.blame else "depends on the error"
    lines = [
        f"## `{cls.__name__}`",
        "",
        (cls.__doc__ or "").replace("``", "`").replace("\n    ", "\n").strip(),
        "",
        f"Code `{cls.code}`; is a {kinds}; has to act: {blame}.",
        "",
    ]
    if cls.fields:
        lines += ["| field | meaning |", "| --- | --- |"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in cls.fields.items()]
        lines.append("")
    return "\n".join(lines)


METRICS_HEAD = """\
# Metrics

<!-- Written by docs/generate.py from gpud/telemetry/metrics.py: change that. -->

What the daemon tells Prometheus, in the OpenMetrics format, where the settings `metrics_socket` or
`metrics_port` say so: see [Watch it with Prometheus](../howto/watch-with-prometheus.md).
OpenMetrics adds `_total` to counters, `_info` to information, and `_bucket`, `_count` and `_sum` to
histograms. Times are seconds, sizes bytes. Those that begin with `gpud_gpu` come from NVML, for
GPUs alone.

| name | kind | labels | meaning |
| --- | --- | --- | --- |
"""


def metrics_page() -> str:
    """Return the reference page of the metrics."""
    rows = (
        f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.meaning} |\n"
        for one in METRICS
    )
    return METRICS_HEAD + "".join(rows)


PAGES: dict[str, Callable[[], str]] = {
    "reference/client.md": client_page,
    "reference/configuration.md": config_page,
    "reference/control-words.md": control_words_page,
    "reference/errors.md": errors_page,
    "reference/gpuctl.md": gpuctl_page,
    "reference/gpud.md": gpud_page,
    "reference/lifecycles.md": lifecycles_page,
    "reference/metrics.md": metrics_page,
    "reference/protocol.md": protocol_page,
    "reference/ptx-support.md": ptx_page,
    "reference/reason-codes.md": forms_page,
    "reference/task-protocol.md": task_protocol_page,
}
"""The generated pages by their path below docs/."""

INTERNAL: dict[str, tuple[str, Callable[[], str]]] = {
    "reference/compiler.md": ("The compiler", compiler_page),
    "reference/device.md": ("Devices and runs", device_page),
    "reference/host-protocol.md": ("The device host protocol", host_protocol_page),
}
"""Pages for those who work on gpud, with their titles: `make site` builds them, and nobody commits
them."""


def main() -> None:
    """Write every generated page and names those that changed."""
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
