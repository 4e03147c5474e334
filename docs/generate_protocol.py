"""Reference pages of the protocols, made of the message tables."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from gpud.device.host.messages import HOST_PROTOCOL
from gpud.wire.field_types import FieldType
from gpud.wire.framing import HEADER_BYTES, MAX_FRAME_BYTES
from gpud.wire.message_table import MessageTable, Sender
from gpud.wire.messages import CLIENT_PROTOCOL, Hello
from gpud.wire.task_messages import TASK_PROTOCOL

__all__ = ["host_protocol_page", "protocol_page", "task_protocol_page"]

_CLIENT_HEAD = """\
# The client protocol, version {version}

<!-- Written by docs/generate.py from gpud/wire/messages/: change that. -->

What a client and the daemon say to each other over the daemon's Unix stream socket. `gpud_client`
speaks it for Python; this page is for writing another client.

{framing}
## Connections

The client sends `Hello`, the daemon answers `Welcome`, and the connection is a *session*. The
daemon knows the user from the socket (`SO_PEERCRED`). A session's jobs, modules and arrays are its
own; the jobs of a user's other sessions can be seen, resized and cancelled, and root and the
daemon's own user may do that with everybody's. What belongs to others is as if it did not exist:
`unknown-name`. When the connection closes, the session's jobs end and its memory is freed.

File descriptors travel from the daemon to the client only, as ancillary data (`SCM_RIGHTS`) with
the first byte of the message that they belong to.

## Requests and jobs

A `request` is a number that the client chooses; the answer carries it. Answers may come in another
order than requests. A client may send more without waiting. Jobs are numbered by the client, 1, 2,
3 ..., so that `Submit` needs no answer: `Finished` is the only one, and it always comes. People see
a job as `session.number`, such as `3.17`.

## What goes wrong

| what came | what the daemon does |
| --- | --- |
| a request that cannot be granted | `Failed` with its number; nothing has changed |
| a job that cannot be accepted | `Finished` with state `failed` and the reason |
| a message with wrong fields, or with a code that is unknown | `Failed`, with the number of the \
request if it could be read, else 0; for a `Submit` whose number could be read, `Finished` |
| a body that is no msgpack, holds an extension type, text that is not UTF-8, a map with keys \
that are no text, or a longer array than any message has | `Goodbye`, then the connection is \
closed |
| a body that is empty or over the limit | the same |
| anything but `Hello` as the first message | the same |

An error is a map: `code`, which is stable, `message` for people, and `fields` for programs. All of
them are in [Errors](errors.md).

"""

_FRAMING = """\
## Frames

A message is a *frame*: the length of its body, {header} bytes, little-endian, then the body. The
body is one [msgpack](https://msgpack.org) array: the message's code, then its fields in the order
below. Fields with a default may be left out at the end; there may not be more fields than listed.
{limit}
"""

_EXAMPLE = """\
For example, `{message}` is

```text
{data}
```

"""

_KINDS = """\
Integers are msgpack integers of any width, and never floats or booleans; text is `str`, bytes are
`bin`. Amounts of CapSM are exact: an array of a numerator and a denominator. Times are nanoseconds.
"""

_HOST_HEAD = """\
# The device host protocol

<!-- Written by docs/generate.py from gpud/device/host/messages.py: change that. -->

What the front and a device host say to each other, over a socket pair that only the two have. It is
internal: both are gpud of one version, so there is no version to agree on, and names may change
without notice.

A command with a `ticket` is answered by exactly one `Replied` or `Refused` with it. `StartRun` is
answered by exactly one `RunEnded`, after the job's last block has left; `ResizeJob` by at least one
`SlicesHeld` of its epoch, unless `RunEnded` comes first.

{framing}
"""


_TASK_HEAD = """\
# The task protocol, version {version}

<!-- Written by docs/generate.py from gpud/wire/task_messages.py: change that. -->

What `gpuctl task` and [`Tasks`](client.md) say to a user's [runner](../explanation/tasks.md), over
`$GPUD_RUNNER`, else `runner.sock` beside the user's own daemon's socket. Every request is answered
by `TaskAnswer` or `TaskRefused` with its number, in any order.

{framing}
"""


def task_protocol_page() -> str:
    """Return the reference page of the link between clients and the runner of tasks."""
    return "".join(
        [
            _TASK_HEAD.format(version=TASK_PROTOCOL.version, framing=_framing("")),
            *_messages(TASK_PROTOCOL, Sender.CLIENT, "From the client"),
            *_messages(TASK_PROTOCOL, Sender.DAEMON, "From the runner"),
        ]
    )


def protocol_page() -> str:
    """Return the reference page of the client protocol."""
    limit = (
        f"The daemon reads bodies of up to {MAX_FRAME_BYTES >> 20} MiB, or what its setting "
        "`max_message_bytes`\nsays; `Welcome` tells.\n"
    )
    return "".join(
        [
            _CLIENT_HEAD.format(
                version=CLIENT_PROTOCOL.version,
                framing=_framing(limit) + _example(CLIENT_PROTOCOL, Hello(1, 1, "me")) + _KINDS,
            ),
            *_messages(CLIENT_PROTOCOL, Sender.CLIENT, "From the client"),
            *_messages(CLIENT_PROTOCOL, Sender.DAEMON, "From the daemon"),
            *_records(CLIENT_PROTOCOL),
        ]
    )


def host_protocol_page() -> str:
    """Return the reference page of the link between the front and a device host."""
    return "".join(
        [
            _HOST_HEAD.format(framing=_framing("") + _KINDS),
            *_messages(HOST_PROTOCOL, Sender.CLIENT, "Commands, from the front"),
            *_messages(HOST_PROTOCOL, Sender.DAEMON, "Events, from the host"),
            *_records(HOST_PROTOCOL),
        ]
    )


def _framing(limit: str) -> str:
    return _FRAMING.format(header=HEADER_BYTES, limit=limit)


def _example(table: MessageTable, message: Any) -> str:
    data = table.encode(message)
    fields = ", ".join(f"{name}={value!r}" for name, value in message._asdict().items())
    parts = data[:HEADER_BYTES].hex(" "), data[HEADER_BYTES:].hex(" ")
    return _EXAMPLE.format(message=f"{type(message).__name__}({fields})", data="  ".join(parts))


def _messages(table: MessageTable, sender: Sender, title: str) -> Iterator[str]:
    messages = [
        cls for _, cls in sorted(table.by_code.items()) if table.schema(cls).sender is sender
    ]
    yield f"## {title}\n\n| code | message | |\n| ---: | --- | --- |\n"
    for cls in messages:
        first = _markdown(cls).partition("\n\n")[0].replace("\n", " ")
        yield f"| {table.codes[cls]} | [`{cls.__name__}`](#{cls.__name__.lower()}) | {first} |\n"
    yield "\n"
    for cls in messages:
        yield from _entry(table, cls)


def _records(table: MessageTable) -> Iterator[str]:
    if table.records:
        yield "## Parts of messages\n\n"
    for cls in table.records:
        yield from _entry(table, cls)


def _entry(table: MessageTable, cls: type[Any]) -> Iterable[str]:
    schema = table.schema(cls)
    yield f"### `{cls.__name__}`\n\n"
    if schema.code is not None:
        yield f"Code {schema.code}. "
    yield f"{_markdown(cls)}\n\n"
    if not schema.fields:
        return
    yield "| field | holds | meaning | default |\n| --- | --- | --- | --- |\n"
    for field in schema.fields:
        default = _value(field.default) if field.has_default else ""
        meaning = field.meaning.replace("|", "\\|")
        yield f"| `{field.name}` | {_type(field.type)} | {meaning} | {default} |\n"
    yield "\n"


def _type(field_type: FieldType) -> str:
    return field_type.describe().replace("|", "\\|")


def _value(value: Any) -> str:
    words = {None: "nil", True: "true", False: "false", (): "empty array"}
    return words[value] if value is None or isinstance(value, bool | tuple) else f"`{value!r}`"


def _markdown(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").replace("``", "`")
