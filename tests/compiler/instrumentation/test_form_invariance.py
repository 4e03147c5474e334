"""Checks, reports and polls change neither a kernel's form nor the results of analyses."""

from __future__ import annotations

import pytest

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.abi.reserved_names import NORETURN
from gpud.compiler.forms.classifier import Form, classify
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.safety.bounds_checks import pass_bounds_checks
from gpud.compiler.passes.safety.traps import pass_traps
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.errors import KernelRejected
from tests.conformance.runner import source_of
from tests.conformance.suite import CASES

NAMES = [case.name for case in CASES if not case.headers]
STUBS = "".join(f".func {name}() .noreturn {{ trap; }}\n" for name in sorted(NORETURN))


def test_the_suite_is_there() -> None:
    assert len(NAMES) > 100


@pytest.mark.parametrize("name", NAMES[::4])
def test_forms_are_the_same_with_and_without_checks(name: str) -> None:
    text = source_of(name).ptx
    try:
        plain = compile_program(text, bounds_checks=False, kill=False)
    except KernelRejected:
        with pytest.raises(KernelRejected):
            compile_program(text)
        return
    checked = compile_program(text)
    for entry, kernel in plain.kernels.items():
        other = checked.kernels[entry]
        assert (kernel.form, kernel.exit_aware, kernel.shape, kernel.waits_on_blocks) == (
            other.form, other.exit_aware, other.shape, other.waits_on_blocks,
        )  # fmt: skip
        assert kernel.why == other.why
        assert kernel.parameters == other.parameters


@pytest.mark.parametrize("name", NAMES[::4])
def test_the_analyses_see_the_same_in_a_checked_program(name: str) -> None:
    """Classified again with its checks: a report is no exit of one thread before others."""
    module = flatten_module(parse(source_of(name).ptx))
    plan = {entry: classify(module, entry) for entry in module.entries()}
    plan = {entry: one for entry, one in plan.items() if one.form is not Form.REJECTED}
    if not plan:
        return
    sites = SiteTable(module)
    checked = pass_bounds_checks(pass_traps(module, plan, sites), plan, sites)
    text = print_module(checked)
    at = text.index(".address_size 64") + len(".address_size 64\n")
    complete = flatten_module(parse(text[:at] + STUBS + text[at:]))
    for entry, before in plan.items():
        after = classify(complete, entry)
        assert (after.form, after.exit_aware, after.shape) == (
            before.form, before.exit_aware, before.shape,
        ), f"{entry}: {after.why}"  # fmt: skip
