"""Arguments of `gpuctl run` and the words of its tables."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from gpud.server.state.access import Peer
from gpud_client.cli import formatting
from gpud_client.cli.job_control import parse_job, share_of
from gpud_client.cli.kernel_arguments import (
    TYPES,
    ArraySpec,
    parse_argument,
    parse_dim,
    parse_output,
)


@pytest.mark.parametrize(
    ("written", "value"),
    [("7", 7), ("-7", -7), ("0x10", 16), ("2.5", 2.5), ("1e-3", 1e-3), ("true", True),
     ("false", False), ("null", None)],
)  # fmt: skip
def test_plain_values(written: str, value: Any) -> None:
    found = parse_argument(written)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("kind", TYPES)
def test_typed_scalars_have_their_type(kind: str) -> None:
    found = parse_argument(f"{kind}:1")
    assert found.dtype == np.dtype(TYPES[kind])
    assert found == 1


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("zeros:f32:3", np.zeros(3, np.float32)),
        ("zeros:f32:0", np.zeros(0, np.float32)),
        ("ones:f64:2x2", np.ones((2, 2))),
        ("arange:i32:4", np.arange(4, dtype=np.int32)),
        ("arange:u8:2x3", np.arange(6, dtype=np.uint8).reshape(2, 3)),
    ],
)
def test_arrays(written: str, expected: np.ndarray[Any, Any]) -> None:
    spec = parse_argument(written)
    assert isinstance(spec, ArraySpec)
    found = spec.make(np.random.default_rng(0))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", TYPES)
def test_random_arrays_are_the_same_for_the_same_seed(kind: str) -> None:
    spec = parse_argument(f"random:{kind}:100")
    first, second = (spec.make(np.random.default_rng(5)) for _ in range(2))
    assert first.dtype == np.dtype(TYPES[kind])
    np.testing.assert_array_equal(first, second)
    assert len(set(first.tolist())) > 1


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.int16).reshape(3, 2).T)
    found = parse_argument(f"file:{path}").make(np.random.default_rng(0))
    np.testing.assert_array_equal(found, [[0, 2, 4], [1, 3, 5]])
    assert found.flags.c_contiguous


@pytest.mark.parametrize("content", [b"", b"text", None, b"PK\x03\x04"])
def test_files_that_are_no_arrays(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(typer.BadParameter, match=r"x\.npy is not a \.npy file"):
        parse_argument(f"file:{path}").make(np.random.default_rng(0))


def test_a_file_of_several_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(1))
    with pytest.raises(typer.BadParameter):
        parse_argument(f"file:{path}").make(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("written", "match"),
    [
        ("", "write a number"),
        ("two", "write a number"),
        ("f32:two", "write a number"),
        ("f33:2", "neither a type"),
        ("i8:128", "from -128 to 127"),
        ("u8:-1", "from 0 to 255"),
        ("i32:1.5", "whole numbers"),
        ("f16:70000", "too large for f16"),
        ("f64:" + "9" * 400, "too large for f64"),
        ("bool:2", "true or false"),
        ("zeros:f32", "how large"),
        ("zeros:f32:-1", "how large"),
        ("zeros:f32:2x", "how large"),
        ("ones:float:4", "not a type"),
        ("file:", "which file"),
    ],
)
def test_arguments_that_mean_nothing(written: str, match: str) -> None:
    with pytest.raises(typer.BadParameter, match=match):
        parse_argument(written)


def test_dimensions() -> None:
    assert parse_dim("256", "grid") == (256,)
    assert parse_dim("16,16,1", "grid") == (16, 16, 1)
    assert parse_dim("16x16", "block") == (16, 16)


@pytest.mark.parametrize("written", ["", "0", "1,0", "1,2,3,4", "a", "1,", "-1", "1.5"])
def test_dimensions_that_are_none(written: str) -> None:
    with pytest.raises(typer.BadParameter, match="--grid"):
        parse_dim(written, "grid")


def test_outputs() -> None:
    assert parse_output("1=y.npy", 2) == (1, Path("y.npy"))
    for written in ("y.npy", "=y", "1=", "x=y", "2=y.npy"):
        with pytest.raises(typer.BadParameter, match="--output"):
            parse_output(written, 2)


def test_jobs_and_shares() -> None:
    assert parse_job("3.17") == (3, 17)
    for written in (
        "",
        "3",
        "3.",
        ".7",
        "3.17.1",
        "a.b",
        "-1.2",
        "4294967296.1",
        "1" * 5000 + ".1",
    ):
        with pytest.raises(typer.BadParameter, match=r"3\.17"):
            parse_job(written)
    assert share_of("25%", 8) == 2
    assert share_of("1.5", 8) == Fraction(3, 2)
    assert share_of(None, 8) is None
    for written in ("x", "0", "-1", "1/0"):
        with pytest.raises(typer.BadParameter):
            share_of(written, 8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0, "0 us"), (85.4e-6, "85 us"), (0.0123, "12.3 ms"), (0.9951, "1.00 s"),
     (1.2, "1.20 s"), (125, "2 min 05 s"), (7500, "2 h 05 min"), (400000, "4 d 15 h")],
)  # fmt: skip
def test_seconds(value: Any, expected: str) -> None:
    assert formatting.seconds(value) == expected


def test_other_words() -> None:
    assert formatting.size(None) == "-"
    assert formatting.size(0) == "0 B"
    assert formatting.size(1536) == "1.5 KiB"
    assert formatting.size(8 << 30) == "8 GiB"
    assert formatting.size(3 << 40) == "3 TiB"
    assert formatting.share("7/2") == "3.5"
    assert formatting.share([1, 3]) == "0.33"
    assert formatting.share(4) == "4"
    assert formatting.share(None) == "-"
    assert formatting.share("much") == "much"
    assert formatting.progress([3, 4]) == "3/4 75%"
    assert formatting.progress([0, 0]) == "0/0 -"
    assert formatting.progress(None) == "-"
    assert formatting.text(["a", None]) == "a, -"
    assert formatting.text("a\x1b[31m\nb") == "a?[31m b"
    assert formatting.clock(None) == "-"
    now = datetime(2026, 1, 2, 3, 4, 5, 678000).astimezone()
    assert formatting.clock(now.timestamp()) == "03:04:05.678"


def test_bars() -> None:
    assert formatting.bar(0, 4, 4) == "    "
    assert formatting.bar(2, 4, 4) == "██  "
    assert formatting.bar(9, 4, 4) == "████"
    assert formatting.bar(1, 16, 4) == "▎   "
    assert formatting.bar(1, 0, 4) == "    "
    assert all(len(formatting.bar(part, 33, 7)) == 7 for part in range(34))


def test_a_process_in_another_pid_namespace_has_no_number() -> None:
    assert [formatting.process(pid) for pid in (7, 0, None)] == ["7", "another pid namespace", "-"]
    assert [Peer(pid, 1, 1).process for pid in (7, 0)] == ["pid 7", "in another pid namespace"]
