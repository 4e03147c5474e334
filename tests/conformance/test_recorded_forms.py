"""No kernel that ran once is refused now, or can be resized less.

``recorded_forms.txt`` has the kernels of the suite, and the form that each has had. One that can be
resized at more moments than recorded passes; after such a gain, or with new cases, write the file
again: ``python tests/conformance/test_recorded_forms.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpud.compiler.forms.classifier import Form, classify
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.runtime.textures import pass_textures
from gpud.compiler.ptx.parser import parse
from tests.conformance.runner import headers_installed, source_of
from tests.conformance.suite import CASES

RECORD = Path(__file__).with_name("recorded_forms.txt")
ORDER = [Form.PERSISTENT, Form.SLICED, Form.WHOLE, Form.REJECTED]


def forms() -> dict[str, Form]:
    """The form of every kernel of the suite, by ``case/entry``."""
    found = {}
    for case in CASES:
        if case.headers and not headers_installed():
            continue
        module = flatten_module(pass_textures(parse(source_of(case.name).ptx)))
        for entry in module.entries():
            decision = classify(module, entry, progress=case.progress)
            found[f"{case.name}/{entry}"] = decision.form
    return found


def recorded() -> dict[str, Form]:
    """The recorded forms."""
    lines = (line.rsplit(" ", 1) for line in RECORD.read_text().splitlines())
    return {kernel: Form(form) for kernel, form in lines}


def test_no_kernel_has_lost_its_form() -> None:
    now, before = forms(), recorded()
    headers = {case.name for case in CASES if case.headers}
    missing = [k for k in before if k not in now and k.split("/")[0] not in headers]
    assert missing == []
    worse = {
        kernel: f"{form.value}, was {before[kernel].value}"
        for kernel, form in now.items()
        if kernel in before and ORDER.index(form) > ORDER.index(before[kernel])
    }
    assert worse == {}


def main() -> None:
    """Write the record."""
    lines = [f"{kernel} {form.value}" for kernel, form in sorted(forms().items())]
    RECORD.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
