"""The parser under atheris, which keeps and mutates the inputs that lead to new code.

    python -m campaigns.fuzz.coverage RESULT SEED MESSAGES SECONDS

Needs atheris and msgpack; exit status 3 where atheris is not installed. The engine never returns
to its caller, so this is a process of its own; what it counted it writes to RESULT as JSON.

An input's first byte chooses the protocol's side and what the rest is: the body of a frame, a
stream of frames, or the decisions of the generator of `campaigns.fuzz.messages`, so that the
engine searches among nearly valid messages as well. The checks of all fields, which are compiled at
run time, are instrumented as the modules are.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

NOT_INSTALLED = 3
_LONGEST_BYTES = 4096
_LOOK_EVERY = 1024  # messages
_WRITE_S = 10.0


def main() -> int:
    """Fuzzes until enough messages were tried; ends the process."""
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        print(
            f"atheris is not installed for {sys.executable} ({error}); install the extra `fuzz`, "
            "or name another interpreter with --python",
            file=sys.stderr,
        )
        return NOT_INSTALLED
    result, seed, messages, seconds = sys.argv[1:]
    with atheris.instrument_imports(include=["gpud.wire"]):
        from campaigns.fuzz import parser
        from campaigns.fuzz.choices import Steered
        from campaigns.fuzz.messages import Fuzzer
    fuzzers: list[Fuzzer] = list(dict.fromkeys(parser.all_fuzzers()))
    for fuzzer in fuzzers:
        for cls in (*fuzzer.classes, *fuzzer.table.records):
            atheris.instrument_func(fuzzer.table.schema(cls).checked_build)
    run = _Run(Path(result), int(messages), float(seconds))

    def one_input(data: bytes) -> None:
        if len(data) < 2:
            return
        fuzzer = fuzzers[data[0] % len(fuzzers)]
        way = data[0] // len(fuzzers) % 4
        thorough = not data[-1] % 8

        def check(body: bytes) -> str:
            return parser.check_body(fuzzer.table, fuzzer.sender, body, thorough=thorough)

        if way == 0:
            run.count("body", check(data[1:]))
        elif way == 1:
            bodies, end = parser.bodies(data[1:], [1 + data[1]])
            for body in bodies:
                run.count("stream", check(body))
            run.count("stream", end)
        else:
            steered = Steered(data[1:])
            for _ in range(4):
                piece = fuzzer.piece(steered)
                run.count(piece.kind, check(piece.data))
                if steered.used_up:
                    break
        run.look()

    corpus = tempfile.mkdtemp(prefix="gpud-corpus-")
    _seed_corpus(Path(corpus), fuzzers)
    run.corpus = Path(corpus)
    number = int.from_bytes(seed.encode()[:4], "little") or 1
    arguments = [sys.argv[0], corpus, f"-seed={number}", f"-max_len={_LONGEST_BYTES}"]
    arguments += ["-print_final_stats=1", "-timeout=20", "-rss_limit_mb=2048"]
    atheris.Setup(arguments, one_input)
    atheris.Fuzz()
    return 0


class _Run:
    """What was counted; ends the process when there is enough."""

    def __init__(self, result: Path, messages: int, seconds: float) -> None:
        self._result = result
        self._messages = messages
        self._began = time.monotonic()
        self._end = self._began + seconds
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._total = 0
        self._next = min(messages, _LOOK_EVERY)
        self._written = self._began
        self.corpus: Path | None = None

    def count(self, kind: str, outcome: str) -> None:
        self._outcomes[kind, outcome] += 1
        self._total += 1

    def look(self) -> None:
        """Writes the counts now and then, and ends the process when it is time."""
        if self._total < self._next:
            return
        over = self._total >= self._messages or time.monotonic() > self._end
        self._next = min(self._total + _LOOK_EVERY, max(self._messages, self._total + 1))
        if over or time.monotonic() - self._written > _WRITE_S:
            self._write()
            self._written = time.monotonic()
        if over:
            # Not through the engine, which counts runs and not messages.
            os._exit(0)

    def _write(self) -> None:
        took = time.monotonic() - self._began
        outcomes: Counter[str] = Counter()
        kinds: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in sorted(self._outcomes.items()):
            outcomes[outcome] += count
            kinds.setdefault(kind, {})[outcome] = count
        inputs = [] if self.corpus is None else list(self.corpus.iterdir())
        found: dict[str, Any] = {
            "messages": self._total,
            "seconds": round(took, 1),
            "messages_per_second": round(self._total / took),
            "inputs_kept": len(inputs),
            "outcomes": dict(outcomes.most_common()),
            "kinds": kinds,
        }
        self._result.write_text(json.dumps(found))


def _seed_corpus(folder: Path, fuzzers: list[Any]) -> None:
    """A valid message of each kind, as a body and in a stream."""
    from campaigns.fuzz.choices import Dice
    from gpud.wire.framing import frame

    dice = Dice("corpus")
    for index, fuzzer in enumerate(fuzzers):
        for cls in fuzzer.classes:
            data = fuzzer.table.encode(fuzzer.valid(dice, cls))[4:]
            if len(data) < _LONGEST_BYTES:
                for way, content in enumerate((data, frame(data) * 2)):
                    first = index + len(fuzzers) * way
                    (folder / f"{index}-{cls.__name__}-{way}").write_bytes(
                        bytes((first,)) + content
                    )
        for number in range(20):
            first = index + len(fuzzers) * 2
            (folder / f"{index}-steered-{number}").write_bytes(bytes((first,)) + dice.data(400))


if __name__ == "__main__":
    sys.exit(main())
