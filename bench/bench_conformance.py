"""The conformance suite on the CPU device, in every form: a table of what agrees with what.

    python bench/bench_conformance.py [--sms N]

For each case and form: NumPy's values, every task block counted once, and for deterministic
kernels the same bytes as the unmodified form. Prints a row for each case and writes
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

from bench.machine import describe
from gpud.device.cpu.device import CPUDevice
from gpud.errors import GpudError
from tests.conformance.runner import headers_installed, run_case, straight
from tests.conformance.suite import CASES, Case, Results, differences_between, mismatches
from tests.conformance.suite.case import Form

RESULT = Path(__file__).parent / "results" / "conformance.json"
FORMS: tuple[Form, ...] = ("unmodified", "persistent", "sliced")


def main() -> int:
    """Runs, prints, keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sms", type=int, default=2, help="virtual SMs")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    totals = Counter[str]()
    began = time.monotonic()
    print(f"{'case':<26}{'form chosen':<24}" + "".join(f"{form:>13}" for form in FORMS))
    with CPUDevice(options.sms) as device:
        for case in CASES:
            verdicts: dict[Form, str]
            if case.headers and not headers_installed():
                verdicts = dict.fromkeys(case.forms, "skipped")
            else:
                verdicts = run(device, case)
            totals.update(verdict.split(":")[0] for verdict in verdicts.values())
            cells = "".join(f"{verdicts.get(form, '-').split(':')[0]:>13}" for form in FORMS)
            print(f"{case.name:<26}{case.expected_form:<24}{cells}", flush=True)
            rows.append({"case": case.name, "form": case.expected_form, "results": verdicts})
    summary: dict[str, Any] = {
        "cases": len(CASES),
        "cases that run": sum(bool(case.forms) for case in CASES),
        "deterministic": sum(bool(case.forms) and case.deterministic for case in CASES),
        **dict(sorted(totals.items())),
        "seconds": round(time.monotonic() - began, 1),
    }
    print("  ".join(f"{name}: {value}" for name, value in summary.items()))
    found = {"machine": describe(), **summary, "rows": rows}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if set(totals) - {"same bytes", "right", "skipped"} else 0


def run(device: CPUDevice, case: Case) -> dict[Form, str]:
    """A verdict by form: same bytes, right, or wrong or failed with the reason after a colon."""
    verdicts: dict[Form, str] = {}
    first: Results | None = None
    for form in FORMS:
        if form not in case.forms:
            continue
        try:
            blocks = case.blocks if form == "unmodified" else 5
            arguments, results = run_case(device, case, form, conduct=straight(blocks))
        except (GpudError, TimeoutError) as error:
            verdicts[form] = f"failed: {error}"
            continue
        problems = mismatches(case, arguments, results)
        verdicts[form] = "right"
        if case.deterministic and first is not None:
            problems += differences_between(first, results)
            verdicts[form] = "same bytes"
        if problems:
            verdicts[form] = f"wrong: {problems[0]}"
        first = first or results
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
