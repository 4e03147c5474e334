"""Removes scopes, so that every name has one meaning in its function.

Problem. ``{ }`` scopes repeat names (each call sequence declares ``param0``, inline assembly
declares ``p`` and ``L``), register names may lack the ``%``, and declarations are scattered. Every
later pass would have to deal with that.

Approach. One walk over each body with an environment per scope. Scopes without clashing names only
lose their braces; clashing names are renamed. For a function without scopes and unusual names, the
common case, only the type of each statement is tested.

Terms. *Environment*: maps a name to its new operand, chained to that of the enclosing scope.
*Taken*: names that a new one must avoid, ``prefix<n>`` ranges included.

Algorithm. Labels and target lists of a scope are declared before its statements are walked, since
jumps may go forward; registers and variables at their declaration, as PTX requires. A clashing name
gets the first free suffix ``_1``, ``_2``, ...; a vector register ``%v`` becomes scalar registers
``%v_x``, ``%v_y``, ...; unused registers of inner scopes are dropped.

Properties.
    no_scopes: no body holds a `Scope`;
    unique: registers, variables, parameters and labels of a function have different names, and a
        variable of a body hides no module-level name unless it was in the outermost scope;
    percent: every register starts with ``%``;
    hoisted: register declarations come first, variables next, both in source order, then code;
    same_code: instructions keep their order, opcodes, negation of guards and immediate operands.

Source: PTX ISA 9.0, sections 4.4, 5.2 and 7.1; scoping of labels in inline assembly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from gpud.compiler.passes.named_spaces import name_spaces
from gpud.compiler.ptx.lexicon import covers_special_register, is_special_register
from gpud.compiler.ptx.model import (
    BranchTargets,
    CallPrototype,
    CallTargets,
    Function,
    Guard,
    Initializer,
    InitialValue,
    Instruction,
    Label,
    Module,
    Operand,
    Parameter,
    Register,
    RegisterDeclaration,
    Scope,
    Statement,
    Symbol,
    Tuple,
    Variable,
    Vector,
)
from gpud.compiler.ptx.renaming import replace_names

__all__ = ["flatten", "flatten_module"]

_ELEMENTS = {"v2": "xy", "v4": "xyzw", "v8": "01234567"}
_SAME_ELEMENT = {"r": "x", "g": "y", "b": "z", "a": "w"}


def flatten_module(module: Module) -> Module:
    """Return ``module`` with all functions flat; ``module`` itself is not changed."""
    names = frozenset(item.name for item in module.items if isinstance(item, (Function, Variable)))
    items = [flatten(item, names) if isinstance(item, Function) else item for item in module.items]
    return name_spaces(replace(module, items=items))


def flatten(function: Function, module_names: Collection[str] = frozenset()) -> Function:
    """Return ``function`` without scopes; it is not changed itself, statements are shared.

    ``module_names`` are the module-level names: a nested variable that hides one is renamed.
    Of a declaration (no body) vectors among the parameters become scalars.
    """
    if function.body is None:
        if any(one.vector for one in (*function.parameters, *function.returns)):
            return _Flattener(function, module_names).declared()
        return function
    if _is_plain(function):
        registers, variables, code = [], [], []
        for statement in function.body:
            kind = type(statement)
            if kind is RegisterDeclaration:
                registers.append(statement)
            elif kind is Variable:
                variables.append(statement)
            else:
                code.append(statement)
        return replace(function, body=[*registers, *variables, *code])
    return _Flattener(function, module_names).run()


def _is_plain(function: Function) -> bool:
    """Return whether nothing has to be renamed, so that only declarations are moved."""
    if any(p.space == "reg" for p in (*function.parameters, *function.returns)):
        return False
    for statement in _declaring(function.body or ()):
        kind = type(statement)
        if kind is Scope:
            return False
        if isinstance(statement, RegisterDeclaration) and (
            statement.vector is not None or not _is_ordinary(statement)
        ):
            return False
    return True


def _declaring(body: Iterable[Statement]) -> list[Statement]:
    """Return the statements of ``body`` that are no instructions: all declarations among them."""
    return [statement for statement in body if type(statement) is not Instruction]


class _Environment:
    """The names that one scope declares, and the scopes around it."""

    __slots__ = ("memo", "names", "outer", "renames")

    def __init__(self, outer: _Environment | None) -> None:
        self.names: dict[str, Register | Symbol | Vector] = {}
        self.outer = outer
        self.memo: dict[int, Operand] = {}
        self.renames = False

    def declare(self, name: str, operand: Register | Symbol | Vector) -> None:
        self.names[name] = operand
        self.memo.clear()
        if isinstance(operand, Vector) or operand.name != name:
            self.renames = True

    def find(self, name: str) -> Register | Symbol | Vector | None:
        """Return the new operand for ``name``; None if no scope of the function declares it."""
        scope: _Environment | None = self
        while scope is not None:
            operand = scope.names.get(name)
            if operand is not None:
                return operand
            scope = scope.outer
        return None


class _Flattener:
    def __init__(self, function: Function, module_names: Collection[str]) -> None:
        self.function = function
        self.module_names = module_names
        self.taken: set[str] = set()
        self.ranges: list[tuple[str, int]] = []
        self.suffixes: dict[str, int] = {}
        self.registers: list[tuple[RegisterDeclaration, bool]] = []
        self.variables: list[Variable] = []
        self.code: list[Statement] = []
        self.used: set[str] = set()

    def run(self) -> Function:
        function = self.function
        environment = _Environment(None)
        self.reserve(function.body or [])
        returns = self.parameters(function.returns, environment)
        parameters = self.parameters(function.parameters, environment)
        self.body(function.body or [], environment, nested=False)
        kept = [r for r, nested in self.registers if not nested or r.name in self.used]
        body: list[Statement] = [*kept, *self.variables, *self.code]
        return replace(function, returns=returns, parameters=parameters, body=body)

    def declared(self) -> Function:
        """Return a declaration with scalar parameters."""
        environment, function = _Environment(None), self.function
        returns = self.parameters(function.returns, environment)
        return replace(
            function, returns=returns, parameters=self.parameters(function.parameters, environment)
        )

    # -- names -------------------------------------------------------------------------------

    def reserve(self, body: list[Statement]) -> None:
        """Mark the names that the outermost scope declares as taken: they are not renamed."""
        for statement in _declaring(body):
            if isinstance(statement, RegisterDeclaration):
                if not _is_ordinary(statement):
                    continue
                if statement.count is not None:
                    self.ranges.append((statement.name, statement.count))
                else:
                    self.taken.add(statement.name)
            elif isinstance(
                statement, (Variable, Label, BranchTargets, CallTargets, CallPrototype)
            ):
                self.taken.add(statement.name)

    def is_taken(self, name: str) -> bool:
        if name in self.taken or is_special_register(name):
            return True
        return any(
            name.startswith(prefix)
            and (rest := name[len(prefix) :]).isdecimal()
            and str(int(rest)) == rest
            and int(rest) < count
            for prefix, count in self.ranges
        )

    def fresh(self, name: str, *, hides: Collection[str] = ()) -> str:
        """Take and return ``name``, or ``name`` with the first free suffix."""
        free_name = name
        while self.is_taken(free_name) or free_name in hides:
            number = self.suffixes[name] = self.suffixes.get(name, 0) + 1
            free_name = f"{name}_{number}"
        self.taken.add(free_name)
        return free_name

    def fresh_prefix(self, name: str, count: int) -> str:
        """Return a prefix for ``name<count>`` whose numbered names are all free; take them."""
        free_prefix = name
        while self.prefix_clashes(free_prefix, count):
            number = self.suffixes[name] = self.suffixes.get(name, 0) + 1
            free_prefix = f"{name}_{number}_"
        self.ranges.append((free_prefix, count))
        return free_prefix

    def prefix_clashes(self, prefix: str, count: int) -> bool:
        if covers_special_register(prefix, count):
            return True
        for other, other_count in self.ranges:
            if count and other_count and (prefix.startswith(other) or other.startswith(prefix)):
                longer = max(prefix, other, key=len)
                rest = longer[min(len(prefix), len(other)) :]
                if not rest or rest.isdecimal():
                    return True
        return any(
            name.startswith(prefix) and name[len(prefix) :].isdecimal() for name in self.taken
        )

    # -- declarations ------------------------------------------------------------------------

    def parameters(
        self, parameters: tuple[Parameter, ...], environment: _Environment
    ) -> tuple[Parameter, ...]:
        renamed: list[Parameter] = []
        for one in parameters:
            if one.space != "reg" or one.name == "_":
                self.taken.add(one.name)
                environment.declare(one.name, Symbol(one.name))
                renamed.append(one)
                continue
            if one.vector is not None:
                items = self.elements(one.name, one.vector, environment)
                renamed += [replace(one, name=item.name, vector=None) for item in items]
                continue
            name = self.fresh(_percent(one.name))
            environment.declare(one.name, Register(name))
            renamed.append(replace(one, name=name))
        return tuple(renamed)

    def register(
        self, declared: RegisterDeclaration, environment: _Environment, *, nested: bool
    ) -> None:
        name = _percent(declared.name)
        own = not nested and _is_ordinary(declared)  # `reserve` has marked it as taken
        if declared.vector is not None:
            self.vector(declared, environment, nested=nested)
        elif declared.count is None:
            new = name if own else self.fresh(name)
            environment.declare(declared.name, Register(new))
            self.registers.append((_renamed(declared, new), nested))
        else:
            new = name if own else self.fresh_prefix(name, declared.count)
            self.registers.append((_renamed(declared, new), False))
            if new != declared.name:
                for i in range(declared.count):
                    environment.declare(f"{declared.name}{i}", Register(f"{new}{i}"))
            elif nested:
                for i in range(declared.count):
                    environment.declare(f"{name}{i}", Register(f"{name}{i}"))

    def vector(
        self, declared: RegisterDeclaration, environment: _Environment, *, nested: bool
    ) -> None:
        """Return one scalar register for each element of a vector register."""
        base = declared.name
        for spelled in (
            [base] if declared.count is None else [f"{base}{i}" for i in range(declared.count)]
        ):
            for item in self.elements(spelled, declared.vector or "v4", environment):
                self.registers.append((RegisterDeclaration(declared.type, item.name), nested))

    def elements(self, name: str, vector: str, environment: _Environment) -> list[Register]:
        """Declare the elements of a vector register, under all names, and itself."""
        items: list[Register] = []
        for element in _ELEMENTS[vector]:
            new = Register(self.fresh(f"{_percent(name)}_{element}"))
            items.append(new)
            environment.declare(f"{name}.{element}", new)
        for alias, element in _SAME_ELEMENT.items():
            if element in _ELEMENTS[vector]:
                environment.declare(f"{name}.{alias}", environment.names[f"{name}.{element}"])
        environment.declare(name, Vector(tuple(items)))
        return items

    def variable(self, declared: Variable, environment: _Environment, *, nested: bool) -> None:
        new = self.fresh(declared.name, hides=self.module_names) if nested else declared.name
        environment.declare(declared.name, Symbol(new))
        init = None if declared.init is None else self.initial(declared.init, environment)
        self.variables.append(replace(declared, name=new, init=init))

    def initial(self, value: InitialValue, environment: _Environment) -> InitialValue:
        if isinstance(value, tuple):
            return tuple(self.initial(item, environment) for item in value)
        if isinstance(value, Initializer):
            return replace(value, name=self.label(value.name, environment))
        return value

    # -- statements --------------------------------------------------------------------------

    def body(self, body: list[Statement], environment: _Environment, *, nested: bool) -> None:
        self.labels(body, environment, nested=nested)
        append = self.code.append
        for statement in body:
            if type(statement) is Instruction:
                same = environment.outer is None and not environment.renames
                append(statement if same else self.instruction(statement, environment))
            elif isinstance(statement, RegisterDeclaration):
                self.register(statement, environment, nested=nested)
            elif isinstance(statement, Variable):
                self.variable(statement, environment, nested=nested)
            elif isinstance(statement, Scope):
                self.body(statement.body, _Environment(environment), nested=True)
            elif isinstance(statement, (Label, CallTargets, CallPrototype)):
                name = self.label(statement.name, environment)
                append(statement if name == statement.name else replace(statement, name=name))
            elif isinstance(statement, BranchTargets):
                targets = tuple(self.label(name, environment) for name in statement.targets)
                name = self.label(statement.name, environment)
                append(replace(statement, name=name, targets=targets))
            else:
                append(statement)

    def labels(self, body: list[Statement], environment: _Environment, *, nested: bool) -> None:
        for statement in _declaring(body):
            if isinstance(statement, (Label, BranchTargets, CallTargets, CallPrototype)):
                name = statement.name
                new = self.fresh(name, hides=self.module_names) if nested else name
                environment.declare(name, Symbol(new))

    def label(self, name: str, environment: _Environment) -> str:
        """Return the new name of a label or variable; itself if it is not the function's."""
        renamed = environment.find(name)
        return renamed.name if isinstance(renamed, Symbol) else name

    def instruction(self, old: Instruction, environment: _Environment) -> Instruction:
        memo = environment.memo
        operands: list[Operand] = []
        changed = False
        for operand in old.operands:
            new = memo.get(id(operand))
            if new is None:
                if isinstance(operand, (Register, Symbol)):  # most are
                    new = self.named(operand, environment)
                else:
                    new = replace_names(operand, lambda one: self.named(one, environment))
                memo[id(operand)] = new
            changed = changed or new is not operand
            operands.append(new)
        if changed and old.opcode.base == "call":  # a vector is as many arguments
            operands = [_spliced(one) if isinstance(one, Tuple) else one for one in operands]
        guard = old.guard
        if guard is not None:
            register = self.named(guard.register, environment)
            if register is not guard.register and isinstance(register, Register):
                guard = Guard(register, guard.negated)
                changed = True
        return Instruction(old.opcode, tuple(operands), guard, old.line) if changed else old

    def named(self, operand: Register | Symbol, environment: _Environment) -> Operand:
        """Return the operand for a name; the same object when nothing changes."""
        renamed = environment.find(operand.name)
        if renamed is None or renamed == operand:
            self.used.add(operand.name)
            return operand
        if isinstance(renamed, Vector):
            self.used.update(item.name for item in renamed.items if isinstance(item, Register))
        elif isinstance(renamed, (Register, Symbol)):
            self.used.add(renamed.name)
        return renamed


def _spliced(arguments: Tuple) -> Tuple:
    items: list[Operand] = []
    for one in arguments.items:
        items += one.items if isinstance(one, Vector) else [one]
    return Tuple(tuple(items))


def _is_ordinary(declared: RegisterDeclaration) -> bool:
    """Return whether a register may keep its name: ``%``-prefixed and not predefined."""
    name, count = declared.name, declared.count
    if name[0] != "%":
        return False
    return not (
        is_special_register(name) if count is None else covers_special_register(name, count)
    )


def _renamed(declared: RegisterDeclaration, name: str) -> RegisterDeclaration:
    return declared if declared.name == name else replace(declared, name=name)


def _percent(name: str) -> str:
    return name if name[0] == "%" else f"%{name}"
