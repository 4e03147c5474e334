"""LLVM IR as text: an `IRModule` collects functions, each written through an `Emitter`.

Text, not `llvmlite.ir` objects: a rewritten kernel of 1,000 PTX lines becomes tens of thousands of
IR lines, and building an object for each takes several times as long as LLVM takes to parse them.

Structured control flow (`Emitter.when`, `Emitter.loop`) lets the hand-written run-time functions of
the CPU device read like C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Emitter", "IRModule"]


_UNLIKELY = "!20"

_NAME = re.compile(r"@([\w.$]+)")


class IRModule:
    """Functions, declarations and named constants of one LLVM module."""

    def __init__(self) -> None:
        self._declarations: dict[str, str] = {}
        self._definitions: list[str] = []
        self._footer: dict[str, str] = {}
        self.flushes = False
        """Whether the processor flushes subnormal single-precision numbers while this code runs."""

    def declare(self, text: str) -> None:
        """Add ``declare ...``, or a global, once; the first ``@name`` in it identifies it."""
        name = _NAME.search(text)
        assert name, text
        self._declarations.setdefault(name[1], text)

    def define(self, text: str) -> None:
        """Add a whole function definition."""
        self._definitions.append(text)

    def define_once(self, name: str, text: str) -> None:
        """Add a helper function definition unless ``name`` is already defined or declared."""
        if name not in self._declarations:
            self._declarations[name] = text

    def has(self, name: str) -> bool:
        """Return whether ``name`` was declared or defined once."""
        return name in self._declarations

    def metadata(self, name: str, text: str) -> None:
        """Add a named metadata or attribute line, ``!0 = ...`` or ``attributes #0 = ...``."""
        self._footer.setdefault(name, text)

    def text(self) -> str:
        """Return the module as LLVM assembly."""
        return "\n".join(
            [*self._declarations.values(), *self._definitions, *self._footer.values(), ""]
        )


class Emitter:
    """The body of one LLVM function, block after block.

    Args:
        module: where helper declarations go.
        header: the ``define`` line up to the brace, such as ``define void @f(ptr %x)``.
    """

    def __init__(self, module: IRModule, header: str) -> None:
        self.module = module
        self.header = header
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._next = 0
        self._terminated = False

    # -- straight-line code

    def value(self, text: str) -> str:
        """Emit ``%vN = text`` and return ``%vN``."""
        name = f"%v{self._next}"
        self._next += 1
        self._lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Emit an instruction without a result."""
        self._lines.append(f"  {text}")

    def alloca(self, type_: str, hint: str = "a") -> str:
        """Add a stack slot to the function's entry block; return its pointer."""
        name = f"%{hint}.{self._next}"
        self._next += 1
        self._entry.append(f"  {name} = alloca {type_}")
        return name

    def named_alloca(self, name: str, type_: str) -> None:
        """Add a stack slot with a given unique name (``%`` included)."""
        self._entry.append(f"  {name} = alloca {type_}")

    # -- blocks

    def label(self, hint: str = "L") -> str:
        """Return a new block name, not placed yet."""
        name = f"{hint}.{self._next}"
        self._next += 1
        return name

    def place(self, label: str) -> None:
        """Begin block ``label``; the previous block falls through to it if it has no terminator."""
        if not self._terminated:
            self._lines.append(f"  br label %{label}")
        self._lines.append(f"{label}:")
        self._terminated = False

    def jump(self, label: str) -> None:
        """End the block with a branch to ``label``."""
        self.end(f"br label %{label}")

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """End the block with a conditional branch on an i1."""
        self.end(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def branch_unlikely(self, condition: str, then: str, otherwise: str) -> None:
        """Branch as `branch` does, with weights that mark a true condition as unlikely."""
        self.module.metadata(_UNLIKELY, f'{_UNLIKELY} = !{{!"branch_weights", i32 1, i32 100000}}')
        self.end(f"br i1 {condition}, label %{then}, label %{otherwise}, !prof {_UNLIKELY}")

    def end(self, text: str) -> None:
        """End the block with any terminator; does nothing if it already has one."""
        if not self._terminated:
            self._lines.append(f"  {text}")
            self._terminated = True

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Emit ``if (condition) { ... }`` around the code of the context."""
        then, after = self.label("then"), self.label("fi")
        self.branch(condition, then, after)
        self.place(then)
        yield
        self.end(f"br label %{after}")
        self._begin(after)

    @contextmanager
    def loop(self) -> Iterator[tuple[str, str]]:
        """Emit ``for (;;) { ... }``; yield the labels to (continue, break), the only way out."""
        again, out = self.label("loop"), self.label("done")
        self.place(again)
        yield again, out
        self.end(f"br label %{again}")
        self._begin(out)

    @contextmanager
    def count(self, start: str, stop: str, type_: str = "i32", metadata: str = "") -> Iterator[str]:
        """Emit ``for (i = start; i < stop; i++) { ... }`` (signed); yield the value of i.

        ``metadata`` is appended to the back edge, with its comma.
        """
        slot = self.alloca(type_, "i")
        self.do(f"store {type_} {start}, ptr {slot}")
        test, body, out = self.label("for"), self.label("body"), self.label("end")
        self.place(test)
        index = self.value(f"load {type_}, ptr {slot}")
        self.branch(self.value(f"icmp slt {type_} {index}, {stop}"), body, out)
        self._begin(body)
        yield index
        if not self._terminated:
            following = self.value(f"add nsw {type_} {index}, 1")
            self.do(f"store {type_} {following}, ptr {slot}")
        self.end(f"br label %{test}{metadata}")
        self._begin(out)

    def _begin(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._terminated = False

    def finish(self) -> None:
        """Add the function to its module."""
        body = "\n".join(["entry:", *self._entry, "  br label %start", "start:", *self._lines])
        self.module.define(f"{self.header} {{\n{body}\n}}")
