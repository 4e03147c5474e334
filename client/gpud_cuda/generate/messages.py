"""Generates the C codec of the client protocol from its message table.

A message becomes a struct; what a client sends gets an encoder, what a daemon sends a decoder. A
field is an integer, bytes, a flag, or, where it holds several values, their msgpack.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpud.wire import field_types as ft
from gpud.wire.field_types import FieldType
from gpud.wire.message_schema import Field, Sender
from gpud.wire.messages import CLIENT_PROTOCOL, VERSION

__all__ = ["messages_header", "messages_source"]


@dataclass(frozen=True)
class _Kind:
    """How a kind of field is declared, written and read in C; ``{}`` is the field."""

    declared: str
    write: str
    read: str


_NUMBER = _Kind("uint64_t {}", "write_uint(writer, {});", "{} = read_uint(reader);")
_FLAG = _Kind("bool {}", "write_flag(writer, {});", "{} = read_flag(reader);")
_TEXT = _Kind("struct bytes {}", "write_text(writer, {});", "{} = read_bytes(reader);")
_BLOB = _Kind("struct bytes {}", "write_blob(writer, {});", "{} = read_bytes(reader);")
# Its msgpack; nothing at all is an empty array.
_PACKED = _Kind("struct bytes {}", "write_list(writer, {});", "{} = read_packed(reader);")
_KINDS: dict[type[FieldType], _Kind] = {
    ft._Uint: _NUMBER,
    ft._Flag: _FLAG,
    ft._Text: _TEXT,
    ft._Choice: _TEXT,
    ft._Blob: _BLOB,
}


def messages_header() -> str:
    """Return ``messages.h``: codes, structs and prototypes."""
    lines = [
        "/* Generated from gpud/wire/messages: do not edit. */",
        "#ifndef GPUD_MESSAGES_H",
        "#define GPUD_MESSAGES_H",
        '#include "msgpack.h"',
        f"enum {{ WIRE_VERSION = {VERSION} }};",
        "enum wire_code {",
        *(f"    WIRE_{_snake(cls).upper()} = {code}," for code, cls in _messages()),
        "};",
    ]
    for cls in _structs():
        name = _snake(cls)
        lines.append(f"struct wire_{name} {{")
        lines += [f"    {_declaration(one)}" for one in CLIENT_PROTOCOL.schema(cls).fields]
        lines += ["};", _prototype(cls) + ";"]
    return "\n".join([*lines, "#endif", ""])


def messages_source() -> str:
    """Return ``messages.c``: encoders and decoders."""
    lines = ["/* Generated from gpud/wire/messages: do not edit. */", '#include "messages.h"']
    for cls in _structs():
        schema = CLIENT_PROTOCOL.schema(cls)
        lines.append(_prototype(cls) + " {")
        if schema.sender is Sender.DAEMON:
            lines += ["    uint32_t count = read_array(reader);", "    read_uint(reader);"]
            for place, one in enumerate(schema.fields, 2):
                code = _read(one)
                if one.has_default:  # it may be left out at the end
                    code = f"if (count >= {place}) {{ {code} }}"
                lines.append(f"    {code}")
            lines.append(f"    return !reader->failed && count > {schema.least};")
        else:
            coded = schema.sender is not None
            lines.append(f"    write_array(writer, {len(schema.fields) + coded});")
            if coded:
                lines.append(f"    write_uint(writer, WIRE_{_snake(cls).upper()});")
            lines += [f"    {_write(one)}" for one in schema.fields]
        lines.append("}")
    return "\n".join([*lines, ""])


def _messages() -> list[tuple[int, type]]:
    return sorted(CLIENT_PROTOCOL.by_code.items())


def _structs() -> list[type]:
    return [*CLIENT_PROTOCOL.records, *(cls for _, cls in _messages())]


def _prototype(cls: type) -> str:
    name = _snake(cls)
    if CLIENT_PROTOCOL.schema(cls).sender is Sender.DAEMON:
        return f"bool wire_read_{name}(struct reader *reader, struct wire_{name} *message)"
    return f"void wire_write_{name}(struct writer *writer, const struct wire_{name} *message)"


def _snake(cls: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def _declaration(field: Field) -> str:
    shape = _shape(field.type)
    name = f"{field.name}[{shape.count}]" if shape.count else field.name
    optional = f"bool has_{field.name}; " if shape.optional else ""
    return f"{optional}{shape.kind.declared.format(name)};"


def _write(field: Field) -> str:
    shape, place = _shape(field.type), f"message->{field.name}"
    code = shape.kind.write.format(place)
    if shape.count:
        code = f"write_array(writer, {shape.count}); {_loop(shape, shape.kind.write, place)}"
    if shape.optional:
        return f"if (message->has_{field.name}) {{ {code} }} else {{ write_nil(writer); }}"
    return code


def _read(field: Field) -> str:
    shape, place = _shape(field.type), f"message->{field.name}"
    code = shape.kind.read.format(place)
    if shape.count:
        checked = f"if (read_array(reader) != {shape.count}) reader->failed = true;"
        code = f"{checked}\n    {_loop(shape, shape.kind.read, place)}"
    if shape.optional:
        has = f"message->has_{field.name}"
        return f"{has} = !read_nil(reader);\n    if ({has}) {{ {code} }}"
    return code


def _loop(shape: _Shape, code: str, place: str) -> str:
    return f"for (int i = 0; i < {shape.count}; i++) {{ {code.format(place + '[i]')} }}"


@dataclass(frozen=True)
class _Shape:
    """The kind of a field's items, their number if it is an array in C, and if it may be nil."""

    kind: _Kind
    count: int
    optional: bool


def _shape(declared: FieldType) -> _Shape:
    optional = isinstance(declared, ft._Optional)
    if isinstance(declared, ft._Optional):
        declared = declared.item
    kind = _KINDS.get(type(declared))
    if kind is not None:
        return _Shape(kind, 0, optional)
    if isinstance(declared, ft._Pair) and _are_numbers(declared.first, declared.second):
        return _Shape(_NUMBER, 2, optional)
    if (
        isinstance(declared, ft._Listed)
        and declared.least == declared.most
        and _are_numbers(declared.item)
    ):
        return _Shape(_NUMBER, declared.most, optional)
    return _Shape(_PACKED, 0, optional)


def _are_numbers(*types: FieldType) -> bool:
    return all(isinstance(one, ft._Uint) for one in types)
