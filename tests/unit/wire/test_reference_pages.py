"""The generated reference pages match the tables, and their examples are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate_config import config_page
from docs.generate_protocol import host_protocol_page, protocol_page
from gpud.config import SETTINGS, Config, load
from gpud.device.host.messages import HOST_PROTOCOL
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import MessageTable, Sender
from gpud.wire.messages import CLIENT_PROTOCOL, Hello, LaunchRecord, Submit


def section(page: str, title: str) -> str:
    found = re.search(rf"^### `{title}`\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


@pytest.mark.parametrize(
    ("page", "table"),
    [(protocol_page(), CLIENT_PROTOCOL), (host_protocol_page(), HOST_PROTOCOL)],
    ids=["client", "host"],
)
def test_every_message_and_every_field(page: str, table: MessageTable) -> None:
    for cls in [*table.codes, *table.records]:
        text = section(page, cls.__name__)
        rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
        assert rows == list(cls._fields)
        if cls in table.codes:
            assert f"Code {table.codes[cls]}. " in text
            assert f"| {table.codes[cls]} | [`{cls.__name__}`]" in page


def test_fields_are_described_as_they_are_declared() -> None:
    text = section(protocol_page(), "Submit")
    assert "| `weight` | integer, 1 to 1000 | an offline job's weight" in text
    assert "| `stream` | integer, 0 to 2^32 - 1 | jobs of one stream run in order" in text
    assert "| `reservation` | array of two integers, numerator and denominator" in text
    assert "| nil |" in text
    assert Submit._field_defaults["weight"] == 1
    assert "| `grid` | array of 3 of: integer, 1 to" in section(
        protocol_page(), LaunchRecord.__name__
    )


def test_the_bytes_of_the_example() -> None:
    page = protocol_page()
    found = re.search(r"^```text\n([0-9a-f ]+)\n```$", page, re.MULTILINE)
    assert found is not None
    assert "`Hello(request=1, version=1, program='me')`" in page
    decoder = FrameDecoder()
    decoder.feed(bytes.fromhex(found[1]))
    (body,) = decoder.frames()
    assert CLIENT_PROTOCOL.decode(body, Sender.CLIENT) == Hello(1, 1, "me")


def test_the_example_file_is_the_defaults(tmp_path: Path) -> None:
    page = config_page()
    found = re.search(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    file = tmp_path / "gpud.toml"
    file.write_text(found[1])
    assert load({}, {}, file) == Config(socket=load({}, {}, file).socket)
    file.write_text(re.sub(r"^# (\w+ =)", r"\1", found[1], flags=re.MULTILINE))
    filled = load({}, {}, file)
    assert {str(filled.socket), str(filled.event_log), str(filled.cache_dir)} == {"/path"}


def test_every_setting_is_told() -> None:
    page = config_page()
    for setting in SETTINGS:
        text = section(page, setting.key)
        assert f"`{setting.flag}`, `{setting.variable}`: " in text
        assert setting.type.describe() in text
        assert setting.meaning[1:] in text
