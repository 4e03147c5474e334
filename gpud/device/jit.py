"""The only interface to LLVM, for all devices: compiles IR text to machine code and loads it.

Errors from LLVM are bugs of the code generator, never the user's: they are raised as `RuntimeError`
with the function at fault, and the caller can dump the IR.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

__all__ = ["NativeCode", "add_symbols", "assemble", "link", "object_code", "target"]

_lock = threading.Lock()


def _quick_passes() -> Any:
    """Return passes that take little time: variables in registers, and fewer branches."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    return passes


def _target_machine(level: int = 2) -> Any:
    """Return a new target machine: MCJIT takes ownership of it and destroys it with the engine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        jit=True,
    )


def target() -> tuple[str, ...]:
    """Return what `object_code` depends on beside its argument: LLVM's version and the machine."""
    version = ".".join(map(str, llvm.llvm_version_info))
    return version, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def add_symbols(symbols: Mapping[str, int]) -> None:
    """Make addresses in this process available to generated code, by name."""
    for name, address in symbols.items():
        llvm.add_symbol(name, address)


class NativeCode:
    """Compiled and loaded code; it is unloaded with the object.

    Attributes:
        addresses: addresses of the exported functions and variables, by name.
    """

    def __init__(self, engine: Any, context: Any, names: tuple[str, ...]) -> None:
        # Not left to the garbage collector, which may destroy the context before its engine.
        end = weakref.finalize(self, _end, engine, context)
        end.atexit = False  # threads may be running the code
        self.addresses = {
            name: engine.get_function_address(name) or engine.get_global_value_address(name)
            for name in names
        }

    def function(self, name: str, kind: Callable[[int], Any]) -> Any:
        """Return a ctypes function of an exported name."""
        return kind(self.addresses[name])


def _end(engine: Any, context: Any) -> None:
    engine.close()
    context.close()


def object_code(ir: str, *, optimise: bool = True) -> bytes:
    """Optimise LLVM assembly and compile it for this machine; returns an object file.

    Without ``optimise`` it takes a tenth of the time, and the code some times longer: for tests.

    Calls are serialised, as llvmlite's calls into LLVM are in any case. Each program has its own
    LLVM context: a shared one would keep the types, names and constants of every program.

    Raises:
        RuntimeError: the IR is malformed, which is a bug in gpud.
    """
    with _lock:
        machine = _target_machine(2 if optimise else 0)
        context = llvm.create_context()
        try:
            module = llvm.parse_assembly(ir, context=context)
            module.triple = llvm.get_default_triple()
            module.data_layout = str(machine.target_data)
            module.verify()
            tuning = llvm.create_pipeline_tuning_options(speed_level=2)
            tuning.loop_vectorization = True
            tuning.slp_vectorization = False  # vectorising the loops over threads is enough
            builder = llvm.create_pass_builder(machine, tuning)
            passes = builder.getModulePassManager() if optimise else _quick_passes()
            try:
                passes.run(module, builder)
            finally:
                # Its own `_dispose` is inherited and frees nothing: 0.1 MiB for each kernel.
                NewPassManager._dispose(passes)
                passes.detach()
            code: bytes = machine.emit_object(module)
            module.close()
            return code
        finally:
            context.close()


def link(
    code: bytes, names: tuple[str, ...], addresses: Mapping[str, int] = MappingProxyType({})
) -> NativeCode:
    """Load an object file from `object_code`, which exports ``names``.

    Its external symbols are found in ``addresses``, or else among those of `add_symbols`.
    """
    with _lock:
        machine = _target_machine()
        context = llvm.create_context()
        external = "\n".join(f"@{name} = external global i8" for name in addresses)
        module = llvm.parse_assembly(external, context=context)
        module.triple = llvm.get_default_triple()
        module.data_layout = str(machine.target_data)
        engine = llvm.create_mcjit_compiler(module, machine)
        for name, address in addresses.items():
            engine.add_global_mapping(module.get_global_variable(name), address)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return NativeCode(engine, context, names)


def assemble(ir: str, names: tuple[str, ...]) -> NativeCode:
    """Compile LLVM assembly and load it.

    Raises:
        RuntimeError: the IR is malformed, which is a bug in gpud.
    """
    return link(object_code(ir), names)


def callback_address(function: Any) -> int:
    """Return the address of a ctypes callback, for `add_symbols`; the caller keeps it alive."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
