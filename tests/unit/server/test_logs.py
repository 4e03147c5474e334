from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gpud.server import logs


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    one = logging.getLogger("gpud")
    before = one.level, one.propagate, list(one.handlers)
    yield one
    one.setLevel(before[0])
    one.propagate = before[1]
    one.handlers[:] = before[2]


def test_text_is_one_line_for_people(logger: logging.Logger) -> None:
    out = io.StringIO()
    logs.set_up("info", "text", out)
    logging.getLogger("gpud.server.hosts.device").warning("device %d\nis %s", 3, "gone\x1b[31m")
    logging.getLogger("gpud.server").debug("not this")
    (line,) = out.getvalue().splitlines()
    assert line.endswith("warning server.hosts.device: device 3 is gone?[31m")


def test_json_is_one_document_a_line(logger: logging.Logger) -> None:
    out = io.StringIO()
    logs.set_up("debug", "json", out)
    try:
        raise ValueError("what happened")
    except ValueError:
        logging.getLogger("gpud.server").exception("two\nlines")
    (line,) = out.getvalue().splitlines()
    found = json.loads(line)
    assert found["level"] == "error"
    assert found["logger"] == "gpud.server"
    assert found["message"] == "two\nlines"
    assert "what happened" in found["traceback"]
