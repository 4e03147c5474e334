"""Emits code that reads and writes the records of `gpud.device.cpu.abi.records`."""

from __future__ import annotations

from gpud.device.cpu.abi.layout import HEADER
from gpud.device.cpu.abi.records import BLOCK, BLOCK_BYTES, LAUNCH, LAUNCH_BYTES, RUN, SHARE
from gpud.device.cpu.ir.emitter import Emitter

__all__ = [
    "Record",
    "add",
    "block_record_of",
    "compare",
    "header_of",
    "launch_of",
    "load",
    "offset",
    "run_of",
    "share_of",
    "store",
]


class Record:
    """The fields of a record at a pointer."""

    def __init__(self, e: Emitter, pointer: str, fields: dict[str, tuple[int, str]]) -> None:
        self.emitter = e
        self.pointer = pointer
        self.fields = fields

    def at(self, name: str) -> str:
        """Return the field's address."""
        return offset(self.emitter, self.pointer, self.fields[name][0])

    def load(self, name: str, order: str = "") -> str:
        """Return the field's value; ``order`` makes the load atomic."""
        type_ = self.fields[name][1]
        return load(self.emitter, type_, self.at(name), order)

    def store(self, name: str, value: object, order: str = "") -> None:
        """Set the field; ``order`` makes the store atomic."""
        type_ = self.fields[name][1]
        store(self.emitter, type_, value, self.at(name), order)


def offset(e: Emitter, pointer: str, offset: object) -> str:
    """Return ``pointer`` plus ``offset`` bytes."""
    return e.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def load(e: Emitter, type_: str, pointer: str, order: str = "") -> str:
    """Return a value from memory; ``order`` makes the load atomic."""
    if not order:
        return e.value(f"load {type_}, ptr {pointer}")
    return e.value(f"load atomic {type_}, ptr {pointer} {order}, align {_size(type_)}")


def store(e: Emitter, type_: str, value: object, pointer: str, order: str = "") -> None:
    """Write to memory; ``order`` makes the store atomic."""
    if not order:
        e.do(f"store {type_} {value}, ptr {pointer}")
    else:
        e.do(f"store atomic {type_} {value}, ptr {pointer} {order}, align {_size(type_)}")


def _size(type_: str) -> int:
    return 4 if type_ == "i32" else 8


def add(e: Emitter, pointer: str, change: int) -> None:
    """Add to a word that only one thread writes."""
    before = load(e, "i32", pointer)
    store(e, "i32", e.value(f"add i32 {before}, {change}"), pointer)


def header_of(e: Emitter) -> Record:
    """Return the header of the block ``%b``."""
    return Record(e, "%b", HEADER)


def block_record_of(e: Emitter) -> Record:
    """Return the record of the persistent block ``%b``."""
    return Record(e, offset(e, "%b", -BLOCK_BYTES), BLOCK)


def run_of(e: Emitter, block_record: Record) -> Record:
    """Return the record of a persistent block's run."""
    return Record(e, block_record.load("run"), RUN)


def share_of(e: Emitter, block_record: Record) -> Record:
    """Return the record of what a persistent block's run has of the block's SM."""
    return Record(e, block_record.load("share"), SHARE)


def launch_of(e: Emitter, run: Record, number: str) -> Record:
    """Return the record of one of a run's launches, by number."""
    wide = e.value(f"zext i32 {run.load('launches_at')} to i64")
    table = offset(e, run.pointer, wide)
    skip = e.value(f"mul i64 {e.value(f'zext i32 {number} to i64')}, {LAUNCH_BYTES}")
    return Record(e, offset(e, table, skip), LAUNCH)


def compare(e: Emitter, comparison: str, type_: str, left: object, right: object) -> str:
    """Return an i1: the result of ``icmp``."""
    return e.value(f"icmp {comparison} {type_} {left}, {right}")
