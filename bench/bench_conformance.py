"""The conformance suite on the CPU device, in every form: a table of verdicts.

    python bench/bench_conformance.py [--sms N]

Checked for each case and form: NumPy's values, every task block counted once, and for deterministic
kernels the same bytes as in the unmodified form. The persistent form also runs with every claim
size of `CLAIMS`, without loading the program again. Prints a row for each case and writes
bench/results/conformance.json; exits 1 if anything disagrees.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from gpud.compiler.abi.control_words import Claims
from gpud.device.cpu.device import CPUDevice
from gpud.errors import GpudError
from tests.conformance.runner import LoadedCase, headers_installed, straight
from tests.conformance.suite import CASES, Case, Results, differences_between, mismatches
from tests.conformance.suite.case import Form

RESULT = Path(__file__).parent / "results" / "conformance.json"
FORMS: tuple[Form, ...] = ("unmodified", "persistent", "sliced", "whole")
CLAIMS = [Claims(chunk, ahead) for chunk in (1, 2, 7) for ahead in (0, 1, 5)]
"""One, a few and many task blocks at a time, each with none, one and more in advance; the first is
the default.

A persistent block has only a few task blocks to run in most cases, so larger numbers would not
differ: the first claim takes all.
"""
_BLOCKS = 5


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sms", type=int, default=2, help="virtual SMs")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    totals, claimed = Counter[str](), Counter[str]()
    began = time.monotonic()
    print(f"{'case':<26}{'form chosen':<24}" + "".join(f"{form:>13}" for form in FORMS))
    with CPUDevice(options.sms) as device:
        for case in CASES:
            verdicts: dict[Form, str]
            claims: dict[str, str] = {}
            if case.headers and not headers_installed():
                verdicts = dict.fromkeys(case.forms, "skipped")
            else:
                verdicts, claims = run(device, case)
            totals.update(verdict.split(":")[0] for verdict in verdicts.values())
            claimed.update(verdict.split(":")[0] for verdict in claims.values())
            cells = "".join(f"{verdicts.get(form, '-').split(':')[0]:>13}" for form in FORMS)
            bad = [f"{how}: {verdict}" for how, verdict in claims.items() if _is_bad(verdict)]
            print(f"{case.name:<26}{case.expected_form:<24}{cells}", *bad, flush=True)
            row = {"case": case.name, "form": case.expected_form, "results": verdicts}
            rows.append({**row, "claims": claims})
    summary: dict[str, Any] = {
        "cases": len(CASES),
        "cases that run": sum(bool(case.forms) for case in CASES),
        "deterministic": sum(bool(case.forms) and case.deterministic for case in CASES),
        **dict(sorted(totals.items())),
        **{f"other claims, {verdict}": count for verdict, count in sorted(claimed.items())},
        "seconds": round(time.monotonic() - began, 1),
    }
    print("  ".join(f"{name}: {value}" for name, value in summary.items()))
    found = {"machine": describe(), **summary, "rows": rows}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(map(_is_bad, totals + claimed)) else 0


def run(device: CPUDevice, case: Case) -> tuple[dict[Form, str], dict[str, str]]:
    """Verdicts by form, and of the persistent form by claim size other than the default.

    A verdict is: same bytes, right, or wrong or failed with the reason after a colon.
    """
    verdicts: dict[Form, str] = {}
    claims: dict[str, str] = {}
    first: Results | None = None
    for form in FORMS:
        if form not in case.forms:
            continue
        try:
            loaded = LoadedCase(device, case, form)
        except GpudError as error:
            verdicts[form] = f"failed: {error}"
            continue
        verdicts[form], results = _judged(loaded, first)
        for how in CLAIMS[1:] if form == "persistent" else ():
            loaded.claims = how
            claims[f"{how.chunk}+{how.ahead}"], _ = _judged(loaded, first)
        first = first or results
    return verdicts, claims


def _judged(loaded: LoadedCase, first: Results | None) -> tuple[str, Results | None]:
    """Return the verdict on one run, and its results; ``first``: results of the unmodified form."""
    case = loaded.case
    once = loaded.start()
    try:
        while once.launches_left:
            job = once.launch()
            straight(case.blocks if loaded.form == "unmodified" else _BLOCKS)(job)
            once.ended(job)
    except (GpudError, TimeoutError) as error:
        return f"failed: {error}", None
    results = once.results()
    problems = mismatches(case, once.arguments, results)
    verdict = "right"
    if case.deterministic and first is not None:
        problems += differences_between(first, results)
        verdict = "same bytes"
    return (f"wrong: {problems[0]}" if problems else verdict), results


def _is_bad(verdict: str) -> bool:
    return verdict.split(":", maxsplit=1)[0] not in ("same bytes", "right", "skipped")


if __name__ == "__main__":
    sys.exit(main())
