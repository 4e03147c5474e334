"""The printer: syntax tree to PTX text, in the layout of NVIDIA's compilers.

Properties. ``parse(print_module(m)) == m``; equal trees print equal texts; one statement per line.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpud.compiler.ptx.model import (
    Address,
    BranchTargets,
    CallPrototype,
    CallTargets,
    Directive,
    Function,
    Immediate,
    Initializer,
    InitialValue,
    Instruction,
    Label,
    Location,
    Module,
    Not,
    Operand,
    Pair,
    Parameter,
    Pragma,
    RawOperand,
    Register,
    RegisterDeclaration,
    Scope,
    SpecialRegister,
    Statement,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
)

__all__ = ["print_instruction", "print_module", "print_operand", "print_statement"]


def print_module(module: Module) -> str:
    """Return the whole program as text, ending with a newline."""
    major, minor = module.version
    out = [
        f".version {major}.{minor}",
        f".target {', '.join(module.target)}",
        f".address_size {module.address_size}",
        "",
    ]
    texts: dict[int, str] = {}
    for item in module.items:
        if isinstance(item, Function):
            _function(item, out, texts)
        elif isinstance(item, Variable):
            out.append(_variable(item))
        else:
            out.append(item.text)
    out.append("")
    return "\n".join(out)


def print_instruction(instruction: Instruction) -> str:
    """Return one instruction as text, without indentation, as error messages show it."""
    text = instruction.opcode.text
    if instruction.operands:
        text += " " + ", ".join(map(print_operand, instruction.operands))
    guard = instruction.guard
    if guard is not None:
        text = f"@{'!' if guard.negated else ''}{guard.register.name} {text}"
    return text + ";"


def print_statement(statement: Statement) -> str:
    """Return any statement as text; scopes take several lines."""
    out: list[str] = []
    _statements([statement], out, {})
    return "\n".join(out)


def print_operand(operand: Operand) -> str:
    """Return one operand as text."""
    if isinstance(operand, (Register, SpecialRegister, Symbol)):  # most are
        return operand.name
    if isinstance(operand, Address):
        base, offset = operand.base, operand.offset
        if base is None:
            return f"[{offset}]"
        return f"[{base.name}+{offset}]" if offset else f"[{base.name}]"
    match operand:
        case Immediate(text) | RawOperand(text):
            return text
        case Vector(items):
            return "{" + ", ".join(map(print_operand, items)) + "}"
        case Tuple(items):
            return "(" + ", ".join(map(print_operand, items)) + ")"
        case Pair(first, second):
            return f"{print_operand(first)}|{print_operand(second)}"
        case Not(register):
            return f"!{register.name}"
        case SymbolOffset(symbol, offset):
            return f"{symbol.name}+{offset}"


def _function(function: Function, out: list[str], texts: dict[int, str]) -> None:
    head = [f".{function.linkage} "] if function.linkage else []
    head.append(f".{function.kind} ")
    before = [a for a in function.attributes if a.startswith(".attribute(")]
    head.extend(f"{text} " for text in before)
    if function.returns:
        head.append(f"({_parameters(function.returns)}) ")
    head.append(function.name)
    if function.parameters:
        lines = ",\n".join(f"\t{_parameter(p)}" for p in function.parameters)
        head.append(f"(\n{lines}\n)")
    else:
        head.append("()")
    out.append("".join(head))
    for text in function.attributes:
        if not text.startswith(".attribute("):
            out.append(f"{text};" if text.startswith(".pragma") else text)
    if function.body is None:
        out.append(";")
    else:
        out.append("{")
        _statements(function.body, out, texts)
        out.append("}")


def _statements(body: Iterable[Statement], out: list[str], texts: dict[int, str]) -> None:
    """Append the lines of ``body``; ``texts`` caches the text of shared operands by identity."""
    append = out.append
    known = texts.get
    for statement in body:
        if type(statement) is Instruction:
            text = statement.opcode.text
            if statement.opcode.used_bytes_mask:
                append(f'\t.pragma "used_bytes_mask {statement.opcode.used_bytes_mask}";')
            if statement.operands:
                parts = []
                for operand in statement.operands:
                    kind = type(operand)
                    if kind is Register or kind is Symbol:
                        parts.append(operand.name)  # type: ignore[union-attr]
                    elif kind is Immediate:
                        parts.append(operand.text)  # type: ignore[union-attr]
                    else:
                        part = known(id(operand))
                        if part is None:
                            part = texts[id(operand)] = print_operand(operand)
                        parts.append(part)
                text = f"{text} {', '.join(parts)}"
            guard = statement.guard
            if guard is None:
                append(f"\t{text};")
            else:
                append(f"\t{'@!' if guard.negated else '@'}{guard.register.name} {text};")
        elif type(statement) is Label:
            append(f"{statement.name}:")
        elif type(statement) is Scope:
            append("\t{")
            _statements(statement.body, out, texts)
            append("\t}")
        else:
            append("\t" + _declaration(statement))


def _declaration(statement: Statement) -> str:
    """Return as text a statement that is neither instruction, label nor scope."""
    match statement:
        case RegisterDeclaration(kind, name, count, vector):
            suffix = "" if count is None else f"<{count}>"
            return f".reg {_vector(vector)}.{kind} {name}{suffix};"
        case Variable():
            return _variable(statement)
        case Location(text):
            return f".loc {text}"
        case Pragma(text):
            return f".pragma {text};"
        case BranchTargets(name, targets):
            return f"{name}: .branchtargets {', '.join(targets)};"
        case CallTargets(name, targets):
            return f"{name}: .calltargets {', '.join(targets)};"
        case CallPrototype():
            return _prototype(statement)
        case Directive(text):
            return text
        case _:
            raise TypeError(f"not a statement of a PTX body: {statement!r}")


def _prototype(prototype: CallPrototype) -> str:
    returns = f"({_parameters(prototype.returns)}) " if prototype.returns else ""
    tail = " .noreturn" if prototype.noreturn else ""
    tail += "".join(f" {text}" for text in prototype.attributes)
    inside = _parameters(prototype.parameters)
    return f"{prototype.name}: .callprototype {returns}_ ({inside}){tail};"


def _variable(variable: Variable) -> str:
    linkage = f".{variable.linkage} " if variable.linkage else ""
    attributes = "".join(f".attribute({text}) " for text in variable.attributes)
    align = "" if variable.align is None else f".align {variable.align} "
    init = "" if variable.init is None else f" = {_initial(variable.init)}"
    return (
        f"{linkage}.{variable.space} {attributes}{align}{_vector(variable.vector)}"
        f".{variable.type} {variable.name}{_dims(variable.dims)}{init};"
    )


def _parameters(parameters: tuple[Parameter, ...]) -> str:
    return ", ".join(map(_parameter, parameters))


def _parameter(parameter: Parameter) -> str:
    align = "" if parameter.align is None else f".align {parameter.align} "
    pointer = ""
    if parameter.pointer is not None:
        pointer = f".ptr {parameter.pointer} " if parameter.pointer else ".ptr "
    return (
        f".{parameter.space} {align}{_vector(parameter.vector)}.{parameter.type} "
        f"{pointer}{parameter.name}{_dims(parameter.dims)}"
    )


def _vector(vector: str | None) -> str:
    return "" if vector is None else f".{vector} "


def _dims(dims: tuple[int | None, ...]) -> str:
    return "".join("[]" if dim is None else f"[{dim}]" for dim in dims)


def _initial(value: InitialValue) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(_initial, value)) + "}"
    if isinstance(value, (Immediate, RawOperand)):
        return value.text
    assert isinstance(value, Initializer)
    text = f"generic({value.name})" if value.generic else value.name
    if value.offset:
        text += f"+{value.offset}"
    return text if value.mask is None else f"{value.mask:#X}({text})".replace("X", "x")
