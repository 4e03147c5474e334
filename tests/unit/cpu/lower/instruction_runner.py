"""Runs single PTX instructions on NumPy arrays, through their lowering and LLVM.

`Instructions.define` makes one LLVM function an instruction: a loop that loads the sources from
arrays into PTX registers, lowers the instruction, and stores the destinations. All functions of
a test module share one LLVM module, optimised at O2 with loop vectorisation for the host's CPU
as the CPU device does, and compiled when the first of them is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.lower import LOWERINGS

Array = np.ndarray[Any, np.dtype[Any]]

SHARED_SIZE = 1024
_LLVM: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.bool_): "i1",
    **{np.dtype(f"{k}{n}"): f"i{8 * n}" for k in "iu" for n in (1, 2, 4, 8)},
}


def register(name: str) -> ptx.Register:
    return ptx.Register(name)


def address(base: str, offset: int = 0) -> ptx.Address:
    return ptx.Address(ptx.Register(base), offset)


_AXES = {"%tid.y": ("6", "i32"), "%tid.z": ("7", "i32")}


class ArrayAddresses:
    """Shared memory in a buffer; the other spaces are given ranges of host addresses."""

    def __init__(self) -> None:
        self.shared = np.zeros(SHARED_SIZE, np.uint8)
        self.local = (0x1000, 0x1000)
        self.const = (0x4000, 0x1000)
        self.param = (0x8000, 0x100)

    def special(self, name: str) -> tuple[str, str]:
        return {
            "%laneid": ("7", "i32"),
            "%clock64": ("99", "i64"),
            "%tid.x": ("5", "i32"),
            **_AXES,
        }[name]

    def symbol(self, name: str) -> str:
        return {"table": "4096", "buffer": "64"}[name]

    def shared_base(self) -> str:
        return f"inttoptr (i64 {self.shared.ctypes.data} to ptr)"

    def shared_size(self) -> str:
        return str(SHARED_SIZE)

    def local_range(self) -> tuple[str, str]:
        return str(self.local[0]), str(self.local[1])

    def const_range(self) -> tuple[str, str]:
        return str(self.const[0]), str(self.const[1])

    def param_range(self) -> tuple[str, str]:
        return str(self.param[0]), str(self.param[1])


@dataclass
class Operation:
    """One compiled instruction (or a short sequence); call it with one array a source."""

    owner: Instructions
    name: str
    outputs: Sequence[np.dtype[Any]]
    inputs: Sequence[np.dtype[Any]]

    def __call__(self, *arrays: object) -> Any:
        """The result, or a tuple of them; the arrays are broadcast against each other."""
        given = [np.asarray(a, dtype=d) for a, d in zip(arrays, self.inputs, strict=True)]
        shape = np.broadcast_shapes(*(a.shape for a in given)) if given else (1,)
        given = [np.ascontiguousarray(np.broadcast_to(a, shape)) for a in given]
        results = [np.empty(shape, dtype) for dtype in self.outputs]
        function = self.owner.function(self.name, len(given) + len(results))
        function(*(a.ctypes.data for a in (*results, *given)), int(np.prod(shape)))
        return results[0] if len(results) == 1 else tuple(results)


@dataclass
class Instructions:
    """The instructions of one test module."""

    addresses: ArrayAddresses = field(default_factory=ArrayAddresses)
    tags: str = ""
    ordered_tags: str = ""

    def __post_init__(self) -> None:
        self.module = IRModule()
        self.count = 0
        self.engine: llvm.ExecutionEngine | None = None

    def define(
        self,
        text: str | Sequence[ptx.Instruction],
        outputs: str | Sequence[str],
        inputs: str | Sequence[str],
        operands: Sequence[object] | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> Operation:
        """An operation from an opcode, or from instructions.

        Outputs are the registers ``%d0, %d1, ...`` and inputs ``%a0, %a1, ...``, given by their
        NumPy dtypes. ``operands`` defaults to all of them in this order; in it a string is a
        register or a symbol and a number an immediate. ``extra`` gives the LLVM types of further
        registers.
        """
        outs = [np.dtype(d) for d in (outputs.split() if isinstance(outputs, str) else outputs)]
        ins = [np.dtype(d) for d in (inputs.split() if isinstance(inputs, str) else inputs)]
        if isinstance(text, str):
            if operands is None:
                names = [f"%d{i}" for i in range(len(outs))] + [f"%a{i}" for i in range(len(ins))]
                operands = names
            nodes = tuple(self._operand(o) for o in operands)
            program: Sequence[ptx.Instruction] = [ptx.Instruction(ptx.opcode(text), nodes)]
        else:
            program = text
        name = f"op{self.count}"
        self.count += 1
        self._emit(name, program, outs, ins, extra or {})
        return Operation(self, name, outs, ins)

    @staticmethod
    def _operand(given: object) -> ptx.Operand:
        if isinstance(given, str):
            return ptx.Register(given) if given[0] == "%" else ptx.Symbol(given)
        if isinstance(given, int):
            return ptx.Immediate(str(given), given)
        return given  # type: ignore[return-value]

    def _emit(
        self,
        name: str,
        program: Sequence[ptx.Instruction],
        outputs: Sequence[np.dtype[Any]],
        inputs: Sequence[np.dtype[Any]],
        extra: Mapping[str, str],
    ) -> None:
        pointers = [f"ptr noalias %out{i}" for i in range(len(outputs))]
        pointers += [f"ptr noalias %in{i}" for i in range(len(inputs))]
        e = Emitter(self.module, f"define void @{name}({', '.join([*pointers, 'i64 %n'])})")
        storage = {f"%d{i}": _LLVM[d] for i, d in enumerate(outputs)}
        storage |= {f"%a{i}": _LLVM[d] for i, d in enumerate(inputs)}
        storage |= {"%CC.CF": "i1"}
        storage |= {"%t64": "i64", **extra}
        thread = Thread(e, storage, self.addresses, self.tags, self.ordered_tags)
        with e.count("0", "%n", "i64") as index:
            for i, dtype in enumerate(inputs):
                memory = "i8" if dtype == np.bool_ else _LLVM[dtype]
                at = e.value(f"getelementptr {memory}, ptr %in{i}, i64 {index}")
                value = e.value(f"load {memory}, ptr {at}")
                if dtype == np.bool_:
                    value = e.value(f"trunc i8 {value} to i1")
                e.do(f"store {_LLVM[dtype]} {value}, ptr {thread.slot(f'%a{i}')}")
            for instruction in program:
                LOWERINGS[instruction.opcode.base](thread, instruction)
            for i, dtype in enumerate(outputs):
                memory = "i8" if dtype == np.bool_ else _LLVM[dtype]
                value = e.value(f"load {_LLVM[dtype]}, ptr {thread.slot(f'%d{i}')}")
                if dtype == np.bool_:
                    value = e.value(f"zext i1 {value} to i8")
                at = e.value(f"getelementptr {memory}, ptr %out{i}, i64 {index}")
                e.do(f"store {memory} {value}, ptr {at}")
        e.end("ret void")
        e.finish()

    def function(self, name: str, pointers: int) -> Callable[..., None]:
        if self.engine is None:
            self.engine = compile_ir(self.module.text())
        location = self.engine.get_function_address(name)
        types = [ctypes.c_void_p] * pointers + [ctypes.c_int64]
        return ctypes.CFUNCTYPE(None, *types)(location)


def optimised(text: str) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
    )
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module, machine


def compile_ir(text: str) -> llvm.ExecutionEngine:
    module, machine = optimised(text)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine
