"""All classes of the error tree: codes, blame, fields, pickling and the wire form."""

from __future__ import annotations

import ast
import concurrent.futures
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import msgpack
import pytest

from gpud import errors
from gpud.errors import Blame, GpudError, error_classes, from_wire
from gpud.errors.base import shorten_error
from gpud.errors.findings import Finding

ABSTRACT = {errors.GpudError, errors.CallerError, errors.DaemonError, errors.DeviceError}

EXAMPLES: list[GpudError] = [
    errors.CompileError("kernel.cu(1): error", log="kernel.cu(1): error\nmore"),
    errors.EmptySource(),
    errors.ImageError("the image is machine code", kind="machine-code"),
    errors.LaneRefused("k is in form whole", reason="whole"),
    errors.LinkError("f is used, and no file defines it", names=("f",)),
    errors.PTXSyntaxError("a ; is missing", line=7, column=22, text="  add.s32 %r1, %r2, 1"),
    errors.PTXVersionError("99.0", "9.0"),
    errors.UnsupportedTarget("compute_35", ["compute_75", "compute_80"]),
    errors.KernelNotFound("axpy", ["_Z4axpyIfEvPT_", "dot"]),
    errors.KernelRejected("texture", "textures are not supported", "tex.2d.v4.f32.s32 {}", 12),
    errors.LaunchConfigError("block", (2048, 1, 1), "more than 1024 threads", limit=1024),
    errors.AdmissionError("more than the device has", requested="7/2", capacity=2),
    errors.OutOfMemory(1 << 40, 4096, limit="device"),
    errors.JobError("it failed", kernel="saxpy"),
    errors.IllegalAddress(
        0x2000_0000_100F,
        space="global",
        array=(0x2000_0000_0000, 4096),
        distance=16,
        kernel="saxpy",
        launch=2,
        task_block=(3, 0, 0),
        thread=(17, 0, 0),
        instruction="st.global.f32 [%rd4], %f3;",
        line=41,
        file="saxpy.cu",
        file_line=7,
        site=5,
    ),
    errors.KernelTrap(
        "assertion `n < 4' failed",
        function="void k(int)",
        kernel="k",
        launch=0,
        task_block=(0, 0, 0),
        thread=(1, 2, 3),
        instruction="call gpud_assert",
        line=9,
        file="k.cu",
        file_line=3,
        site=0,
    ),
    errors.CheckFailed(
        [
            Finding(
                "read-write",
                "read",
                4,
                0x2000_0000_1000,
                "global",
                (0x2000_0000_0000, 8192),
                "float32 (2048,)",
                4,
                1,
                "k",
                None,
                (3, 0, 0),
                (17, 0, 0),
                5,
                "ld.global.f32 %f1;",
                41,
                "k.cu",
                7,
                (2, 0, 0),
                (1, 0, 0),
                6,
                "k.cu:9",
                12,
            )
        ],
        then="it was cancelled",
    ),
    errors.JobTimeout(1_500_000_000, kernel="k"),
    errors.JobCancelled("cancelled by its owner", kernel="k"),
    errors.PredecessorFailed("job 3.18 was not run", job="3.17", kernel="add"),
    errors.DeviceLost(
        "the device host ended with signal 9", kernel="k", device="cuda:0", culprit="3.17"
    ),
    errors.ConnectionLost("no daemon listens there"),
    errors.MissingDependency("llvmlite", extra="daemon", cause="no module"),
    errors.InternalError("a block was claimed twice", stage="claim", reproducer="a.json"),
    errors.ProtocolError("a message is an array", request=7, job=3),
    errors.FrameError("the frame has no body", request=0, job=0),
    errors.InvalidArgument("--hold must be a time"),
    errors.UnknownName("there is no job 3.17"),
    errors.LimitExceeded("too many jobs", limit="max_jobs_per_session", value=10),
    errors.Draining("the daemon is shutting down"),
    errors.TaskFailed("task 7 has failed: it ended with status 3", task=7, exit_status=3),
]


def test_every_class_that_is_raised_has_an_example() -> None:
    assert {type(error) for error in EXAMPLES} | ABSTRACT == set(error_classes())


def test_codes_are_unique_and_plain() -> None:
    codes = [cls.code for cls in error_classes()]
    assert len(set(codes)) == len(codes)
    assert all(code == code.lower() and code.replace("-", "").isalpha() for code in codes)


@pytest.mark.parametrize(
    ("told", "command"),
    [
        ('{"url": "file://HERE", "dir_info": {"editable": true}}', "-e 'HERE[demo]'"),
        ('{"url": "file://HERE", "dir_info": {}}', "'HERE[demo]'"),
        ('{"url": "file://HERE/gone.whl", "archive_info": {}}', "'gpud[demo]'"),
        (None, "'gpud[demo]'"),
    ],
)
def test_the_command_for_an_extra_names_what_gpud_was_installed_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str | None, command: str
) -> None:
    told = None if told is None else told.replace("HERE", str(tmp_path))
    distribution = SimpleNamespace(read_text=lambda name: told)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: distribution)
    wanted = command.replace("HERE", str(tmp_path))
    assert errors.pip_command("demo").endswith(f" -m pip install {wanted}")


def test_codes_are_stable() -> None:
    """These are on the wire and in scripts: a code may be added, never changed or reused."""
    assert {cls.__name__: cls.code for cls in error_classes()} == {
        "GpudError": "gpud",
        "CallerError": "caller",
        "DaemonError": "daemon",
        "DeviceError": "device",
        "CompileError": "compile",
        "EmptySource": "empty-source",
        "ImageError": "image",
        "LinkError": "link",
        "LaneRefused": "lane-refused",
        "PTXSyntaxError": "ptx-syntax",
        "PTXVersionError": "ptx-version",
        "UnsupportedTarget": "unsupported-target",
        "KernelNotFound": "kernel-not-found",
        "KernelRejected": "kernel-rejected",
        "LaunchConfigError": "launch-config",
        "AdmissionError": "admission",
        "OutOfMemory": "out-of-memory",
        "JobError": "job",
        "IllegalAddress": "illegal-address",
        "KernelTrap": "kernel-trap",
        "CheckFailed": "check-failed",
        "JobTimeout": "job-timeout",
        "JobCancelled": "job-cancelled",
        "DeviceLost": "device-lost",
        "PredecessorFailed": "predecessor-failed",
        "ConnectionLost": "connection-lost",
        "MissingDependency": "missing-dependency",
        "InternalError": "internal",
        "ProtocolError": "protocol",
        "FrameError": "frame",
        "InvalidArgument": "invalid-argument",
        "UnknownName": "unknown-name",
        "LimitExceeded": "limit",
        "Draining": "draining",
        "TaskFailed": "task-failed",
    }


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_one_blame(error: GpudError) -> None:
    blames = {
        Blame.CALLER: errors.CallerError,
        Blame.DAEMON: errors.DaemonError,
        Blame.DEVICE: errors.DeviceError,
    }
    kinds = type(error).__mro__
    by_type = [blame for blame, cls in blames.items() if cls in kinds]
    if type(error) is errors.JobError:  # says nothing of the cause; its subclasses do
        assert (by_type, error.blame) == ([], None)
    else:
        assert by_type == [error.blame]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_fields_are_declared_typed_and_set(error: GpudError) -> None:
    assert set(get_type_hints(type(error))) - set(get_type_hints(GpudError)) == set(error.fields)
    assert all(getattr(error, name) is not None for name in error.fields)
    assert all(meaning and not meaning.endswith(".") for meaning in error.fields.values())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
@pytest.mark.parametrize("carrier", ["pickle", "msgpack", "plain"])
def test_survives_every_way_that_it_travels(error: GpudError, carrier: str) -> None:
    if carrier == "pickle":
        copy = pickle.loads(pickle.dumps(error))
    elif carrier == "msgpack":
        copy = from_wire(msgpack.unpackb(msgpack.packb(error.to_wire())))
    else:
        copy = from_wire(error.to_wire())
    assert type(copy) is type(error)
    assert str(copy) == str(error) != ""
    assert copy.to_wire() == error.to_wire()
    assert copy.args == error.args == (str(error),)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_fields_that_a_sender_lacks_are_none(error: GpudError) -> None:
    copy = from_wire({"code": error.code, "message": "short"})
    assert type(copy) is type(error)
    assert all(getattr(copy, name) is None for name in error.fields)


def test_an_error_of_a_newer_version_keeps_its_message() -> None:
    newer = {"code": "gravity-lost", "message": "hold on", "fields": {"g": 0}}
    error = from_wire(newer)
    assert type(error) is GpudError
    assert str(error) == "gravity-lost: hold on"


def test_a_field_of_a_newer_version_is_dropped() -> None:
    wire = errors.OutOfMemory(2, 1).to_wire()
    wire["fields"]["device"] = "cuda:0"
    assert from_wire(wire).to_wire() == errors.OutOfMemory(2, 1).to_wire()


@pytest.mark.parametrize(
    "data", [{}, {"code": "gpud"}, {"code": 3, "message": ""}, {"code": "gpud", "message": None},
             {"code": "gpud", "message": "", "fields": [1]}]
)  # fmt: skip
def test_what_is_no_error_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not an error"):
        from_wire(data)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (None, "9 bytes were asked for, 4 are available to this session; free arrays, or have"),
        ("session", "free arrays, or have the daemon's setting session_memory raised"),
        ("user", "your other sessions, or have the daemon's setting user_memory raised"),
        ("device", "sessions have ended, or have the daemon's setting memory raised"),
        ("arena", "4 are available in one piece; free arrays between others"),
    ],
)
def test_what_is_full_is_named_with_what_to_do(limit: str | None, message: str) -> None:
    assert message in str(errors.OutOfMemory(9, 4, limit=limit))


def test_an_unknown_field_is_our_bug() -> None:
    with pytest.raises(TypeError, match="colour"):
        errors.JobCancelled("why", colour="red")


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.EmptySource(), ValueError),
        (errors.UnsupportedTarget("sm_1", []), ValueError),
        (errors.LaunchConfigError("grid", 0, "must be at least 1"), ValueError),
        (errors.KernelNotFound("k"), LookupError),
        (errors.KernelNotFound("k"), errors.CompileError),
        (errors.OutOfMemory(2, 1), MemoryError),
        (errors.JobTimeout(1), TimeoutError),
        (errors.JobCancelled("why"), concurrent.futures.CancelledError),
        (errors.ProtocolError("what"), ValueError),
        (errors.InvalidArgument("what"), ValueError),
        (errors.UnknownName("what"), LookupError),
        (errors.ConnectionLost(), ConnectionError),
        (errors.MissingDependency("x", extra="daemon"), ImportError),
    ],
    ids=lambda item: getattr(item, "code", ""),
)
def test_built_in_kinds(error: GpudError, builtin: type[Exception]) -> None:
    assert isinstance(error, builtin)


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (errors.PTXSyntaxError("no .version", line=3, text="int  main"), ["line 3", "int main"]),
        (errors.PTXVersionError("99.0", "9.0"), ["99.0", "9.0", "older CUDA toolkit"]),
        (errors.UnsupportedTarget("sm_35", ["compute_75"]), ["'sm_35'", "compute_75"]),
        (errors.KernelNotFound("axpy", ["dot"]), ["'axpy'", "defines dot", 'extern "C"']),
        (errors.KernelNotFound("axpy", []), ["defines no kernel"]),
        (errors.KernelRejected("texture", "no textures", "tex.1d", 5), ["tex.1d", "line 5"]),
        (errors.LaunchConfigError("block", [9, 9, 99], "too large"), ["block=(9, 9, 99)"]),
        (errors.LaunchConfigError("shared", 99, "too large"), ["shared=99: too large"]),
        (errors.OutOfMemory(4096, 512), ["4096", "512", "free"]),
        (errors.IllegalAddress(48879, task_block=(1, 0, 0)), ["0xbeef", "(1, 0, 0)", "null"]),
        (errors.KernelTrap("i < n", kernel="k"), ["i < n", "in k"]),
        (errors.JobTimeout(2_500_000_000), ["2.5 s", "longer timeout"]),
        (
            errors.MissingDependency("llvmlite", extra="daemon"),
            ["llvmlite", errors.pip_command("daemon")],
        ),
    ],
    ids=lambda item: getattr(item, "code", ""),
)
def test_messages_show_the_value_and_what_to_do(error: GpudError, parts: list[str]) -> None:
    assert all(part in str(error) for part in parts), str(error)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            next(e for e in EXAMPLES if isinstance(e, errors.IllegalAddress)),
            (
                "illegal address 0x20000000100f, 16 bytes after array 0x200000000000 of 4096 "
                "bytes, in saxpy, launch 2, task block (3, 0, 0), thread (17, 0, 0), "
                "at st.global.f32 [%rd4], %f3 (PTX line 41, saxpy.cu:7); "
                "check the index against the array's size"
            ),
        ),
        (
            errors.IllegalAddress(0x2000, array=(0x3000, 8), distance=0x1000),
            "illegal address 0x2000; it is next to null: check that the pointer was passed and set",
        ),
        (
            errors.IllegalAddress(0x20_0000, array=(0x30_0000, 8), distance=0x10_0000, line=4),
            (
                "illegal address 0x200000, 1048576 bytes before array 0x300000 of 8 bytes, PTX "
                "line 4; check the index against the array's size"
            ),
        ),
        (
            errors.IllegalAddress(0x30_0002, misaligned=True, array=(0x30_0000, 4096), distance=0),
            (
                "misaligned address 0x300002, inside array 0x300000 of 4096 bytes; vector and wide "
                "accesses need an address that is a multiple of their size"
            ),
        ),
        (
            errors.IllegalAddress(0x408, space="shared", kernel="k"),
            (
                "illegal address 0x408 in shared memory, in k; check the index against the size of "
                "what was declared there"
            ),
        ),
        (
            next(e for e in EXAMPLES if isinstance(e, errors.KernelTrap)),
            (
                "the kernel stopped itself (assertion `n < 4' failed), function void k(int), in k, "
                "launch 0, task block (0, 0, 0), thread (1, 2, 3), PTX line 9, k.cu:3"
            ),
        ),
        (errors.KernelTrap(kernel="k"), "the kernel stopped itself (trap), in k"),
        (
            errors.JobTimeout(10**9, kernel="k"),
            (
                "the job was ended after its timeout of 1 s in k; give it a larger share or a "
                "longer timeout"
            ),
        ),
    ],
    ids=range(8),
)
def test_a_fault_is_told_in_one_line(error: GpudError, message: str) -> None:
    assert str(error) == message


def test_a_fault_says_no_more_than_a_line() -> None:
    error = "x\n" * 5000
    for one in (errors.KernelTrap(error), errors.IllegalAddress(1 << 40, instruction=error)):
        assert "\n" not in str(one)
        assert len(str(one)) < 600


def test_long_text_is_cut_in_messages_and_kept_in_fields() -> None:
    error = errors.PTXSyntaxError("bad", line=1, text="x" * 5000)
    assert len(str(error)) < 200
    assert error.text == "x" * 5000


def rejection_codes(source: str) -> set[str]:
    """The literal reason codes in calls of ``KernelRejected``."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "KernelRejected"
        if call.args and isinstance(call.args[0], ast.Constant)
    }


def test_every_reason_code_is_in_the_table() -> None:
    package = Path(errors.__file__).parents[1]
    used = set().union(*(rejection_codes(path.read_text()) for path in package.rglob("*.py")))
    assert used - set(errors.REJECTIONS) == set()
    assert rejection_codes("raise KernelRejected('oops', message)") == {"oops"}


def test_a_shortened_error_keeps_its_type_and_fields() -> None:
    trap = errors.KernelTrap("it failed", kernel="k" * 1_000_000, launch=3)
    short = shorten_error(trap, 2048, 16)
    assert isinstance(short, errors.KernelTrap)
    assert short.launch == 3
    assert short.cause == "it failed"
    assert "it failed" in short.message
    assert len(str(short.to_wire())) < 8192
    names = shorten_error(errors.KernelNotFound("k", ["n" * 100_000] * 1000), 2048, 16)
    assert len(str(names.to_wire())) < 100_000


def test_an_error_of_the_usual_length_is_not_shortened() -> None:
    error = errors.JobCancelled("job 1/1 was cancelled")
    assert shorten_error(error, 2048, 16) is error
