"""Reproducers: folders from which a failed compilation can be repeated elsewhere.

A reproducer holds the source (``source.cu`` or ``source.ptx``), the results of the stages before
the failure if it is a dump folder, and ``reproducer.json``: the request, the stage that failed, the
error and the versions of everything involved. `gpud.compiler.reproducer` compiles it again.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpud.compiler.request import Request

__all__ = ["load_request", "write_reproducer"]

_FILE = "reproducer.json"


def write_reproducer(
    folder: Path, request: Request, stage: str, error: BaseException, versions: dict[str, str]
) -> Path:
    """Write ``source.*`` and ``reproducer.json`` to ``folder``; return the latter's path.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / ("source.ptx" if request.is_ptx else "source.cu")
    source.write_text(request.source, "utf-8", "surrogatepass")
    plain = asdict(request)
    del plain["source"]
    plain["images"] = [f"image-{number}" for number in range(len(request.images))]
    for name, image in zip(plain["images"], request.images, strict=True):
        (folder / name).write_bytes(image)
    about = {
        "source": source.name,
        "request": plain,
        "stage": stage,
        "error": {"type": type(error).__name__, "message": str(error)},
        "versions": {"python": platform.python_version(), **versions},
    }
    path = folder / _FILE
    path.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return path


def load_request(folder: Path) -> Request:
    """Read the request of a reproducer.

    Raises:
        OSError, ValueError, KeyError: The folder holds none.
    """
    about: dict[str, Any] = json.loads((folder / _FILE).read_text("utf-8"))
    plain = about["request"]
    for name in ("options", "name_expressions"):
        plain[name] = tuple(plain[name])
    plain["headers"] = tuple((name, text) for name, text in plain["headers"])
    plain["images"] = tuple((folder / Path(name).name).read_bytes() for name in plain["images"])
    source = (folder / Path(about["source"]).name).read_text("utf-8", "surrogatepass")
    return Request(source=source, **plain)
