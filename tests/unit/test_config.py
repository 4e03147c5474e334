"""Settings from flags, environment and file: precedence, validation, and error messages."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpud.config import SETTINGS, Config, config_file, load
from gpud.errors import InvalidArgument
from gpud.server.settings import scheduler_settings

NOWHERE = {"XDG_CONFIG_HOME": "/nonexistent", "XDG_RUNTIME_DIR": "/run/user/7"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpud.toml"


def by_key(key: str) -> Any:
    return next(setting for setting in SETTINGS if setting.key == key)


# -- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_whole(setting: Any, file: Path) -> None:
    """The default, written out, means the same from each source, and has an origin."""
    assert setting.meaning
    assert setting.type.describe()
    assert setting.variable == f"GPUD_{setting.key.upper()}"
    assert setting.flag.startswith("--")
    if setting.default is None:
        assert "by default" in setting.meaning
        return
    value = getattr(Config(), setting.name)
    text = setting.default
    file.write_text(f"{setting.key} = {[text] if setting.many else f'{text!r}'}\n")
    if setting.type.describe().startswith("a whole number"):
        file.write_text(f"{setting.key} = {text}\n")
    for found, origin in [
        (load({}, NOWHERE, file), f"{file}:1"),
        (load({}, {**NOWHERE, setting.variable: text}), setting.variable),
        (load({setting.key: [text] if setting.many else text}, NOWHERE), setting.flag),
    ]:
        assert getattr(found, setting.name) == value
        assert found.origin(setting.name) == found.origin(setting.key) == origin


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        ("grace", ["2 s", "1500 ms", "10 ms", "1 h"]),
        ("hold", ["0 us", "1.5 us"]),
        ("memory", ["50%", "12.5%", "8 GiB", "1000001"]),
        ("socket_mode", ["0660"]),
        ("bounds_checks", ["on", "off"]),
        ("devices", ["cpu:2,cuda:0"]),
        ("offline_floor", ["25%", "3/2"]),
        ("users", ['"a b" = {weight = 2, hold = "50%"}, "*" = {queue = 3}']),
        ("event_log", ["/tmp/log"]),
    ],
)
def test_a_value_is_written_as_it_is_read(key: str, texts: list[str]) -> None:
    kind = by_key(key).type
    for text in texts:
        value = kind.from_text(text)
        assert kind.from_text(kind.to_text(value)) == value
    assert kind.to_text(kind.from_text(texts[0])) == texts[0]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_default_is_written_as_it_is_read(setting: Any) -> None:
    value = getattr(Config(), setting.name)
    if value is not None:
        assert setting.type.from_text(setting.type.to_text(value)) == value


def test_without_anything_all_is_the_default() -> None:
    found = load({}, NOWHERE)
    assert found == Config(socket=Path("/run/user/7/gpud/gpud.sock"))
    assert {found.origin(setting.name) for setting in SETTINGS} == {"the default"}


def test_precedence(file: Path) -> None:
    file.write_text('policy = "a"\nhistory = 1\ngrace = 1\nhold = 1\n')
    environ = {**NOWHERE, "GPUD_POLICY": "b", "GPUD_HISTORY": "2", "GPUD_GRACE": ""}
    found = load({"policy": "c", "history": None, "devices": []}, environ, file)
    assert (found.policy, found.history, found.grace_ns) == ("c", 2, 10**9)
    assert found.devices == ("auto",)
    assert [found.origin(name) for name in ("policy", "history", "grace", "hold_ns")] == [
        "--policy", "GPUD_HISTORY", f"{file}:3", f"{file}:4",
    ]  # fmt: skip


# -- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("socket", "/tmp/x.sock", Path("/tmp/x.sock")),
        ("socket_mode", "0660", 0o660),
        ("socket_mode", "666", 0o666),
        ("devices", "cpu:4, cpu:2", ("cpu:4", "cpu:2")),
        ("bounds_checks", "off", False),
        ("bounds_checks", "True", True),
        ("hold", "5", 5_000_000),
        ("hold", "250us", 250_000),
        ("hold", "0.5 s", 500_000_000),
        ("grace", "1.5", 1_500_000_000),
        ("drain_timeout", "2 min", 120 * 10**9),
        ("drain_timeout", "1h", 3600 * 10**9),
        ("memory", "4096", 4096),
        ("memory", "1.5 GiB", 3 << 29),
        ("memory", "500 MB", 500 * 10**6),
        ("memory", "12.5%", Fraction(1, 8)),
        ("offline_floor", "3/2", "3/2"),
        ("offline_floor", "25%", "25%"),
        ("log_format", "json", "json"),
        ("event_log", "/var/log/x", Path("/var/log/x")),
    ],
)
def test_text(key: str, text: str, value: Any) -> None:
    name = by_key(key).name
    assert getattr(load({key: text}, NOWHERE), name) == value
    assert getattr(load({}, {**NOWHERE, by_key(key).variable: text}), name) == value


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('devices = ["cpu:4", "cuda:1"]', "devices", ("cpu:4", "cuda:1")),
        ("bounds_checks = false", "bounds_checks", False),
        ('bounds_checks = "on"', "bounds_checks", True),
        ("hold = 2.5", "hold_ns", 2_500_000),
        ('hold = "7 ms"', "hold_ns", 7_000_000),
        ("memory = 1073741824", "memory", 1 << 30),
        ('memory = "75%"', "memory", Fraction(3, 4)),
        ("offline_floor = 2", "offline_floor", "2"),
        ("offline_floor = 0.5", "offline_floor", "0.5"),
        ("max_connections = 9", "max_connections", 9),
        ('socket_mode = "0660"', "socket_mode", 0o660),
        ('"history" = 5', "history", 5),
    ],
)
def test_toml(line: str, name: str, value: Any, file: Path) -> None:
    file.write_text(f"# a file\n\n{line}\n")
    found = load({}, NOWHERE, file)
    assert getattr(found, name) == value
    assert found.origin(name) == f"{file}:3"


def test_a_home_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/ann")
    assert load({"cache_dir": "~/x"}, NOWHERE).cache_dir == Path("/srv/ann/x")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("socket", " "),
        ("socket", "/" + "x" * 107),
        ("socket_mode", "600 "),
        ("socket_mode", "0400"),
        ("socket_mode", "0800"),
        ("socket_mode", "6000"),
        ("devices", "cpu,,cpu"),
        ("devices", "cpu 4"),
        ("policy", "a b"),
        ("bounds_checks", "no"),
        ("bounds_checks", "0"),
        ("hold", "-1"),
        ("hold", "1e3"),
        ("hold", "5 days"),
        ("hold", "61 s"),
        ("hold", "nan"),
        ("grace", "0"),
        ("compile_timeout", "0"),
        ("memory", "0"),
        ("memory", "0%"),
        ("memory", "101%"),
        ("memory", "1.5"),
        ("memory", "8 GiBs"),
        ("memory", "much"),
        ("memory", "99999999999 TiB"),
        ("max_message_bytes", "1 KiB"),
        ("max_message_bytes", "2 GiB"),
        ("max_message_bytes", "50%"),
        ("offline_floor", "-1"),
        ("offline_floor", "some"),
        ("offline_floor", "1/0"),
        ("offline_floor", "200%"),
        ("offline_floor", "100.1%"),
        ("users", "alice"),
        ("users", "alice = {wieght = 1}"),
        ("users", "alice = {weight = 0}"),
        ("users", "alice = {hold = '150%'}"),
        ("groups", "students = 3"),
        ("max_connections", "0"),
        ("max_connections", "1_000"),
        ("max_connections", "ten"),
        ("max_connections", "100001"),
        ("history", "-1"),
        ("log_level", "INFO"),
        ("log_format", "xml"),
        ("event_log", "a\0b"),
        ("cache_dir", " "),
    ],
)
def test_values_that_are_refused(key: str, text: str) -> None:
    setting = by_key(key)
    with pytest.raises(InvalidArgument) as caught:
        load({key: text}, NOWHERE)
    assert str(caught.value).startswith(f"{setting.flag} must be {setting.type.describe()}")
    assert repr(text)[1:5] in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        load({}, {**NOWHERE, setting.variable: text})
    assert str(caught.value).startswith(f"the variable {setting.variable} must be ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("socket_mode = 0o600", "in octal, .* in quotes"),
        ("socket_mode = 600", "in octal, .* in quotes"),
        ('max_connections = "5"', "a whole number"),
        ("max_connections = 5.0", "a whole number"),
        ("max_connections = true", "a whole number"),
        ("bounds_checks = 1", "on or off"),
        ("hold = inf", "a time"),
        ("hold = nan", "a time"),
        ("hold = true", "a time"),
        ("hold = -0.5", "a time"),
        ("memory = 1.5", "a number of bytes"),
        ("memory = -5", "a number of bytes"),
        ("devices = []", "one or more"),
        ('devices = "cpu"', "one or more"),
        ("devices = [1]", "one or more"),
        ('devices = [["cpu"]]', "one or more"),
        ("log_level = 3", "one of debug"),
        ("offline_floor = true", "a number of SMs"),
        ("offline_floor = nan", "a number of SMs"),
        ("socket = 1979-05-27", "a path"),
        ("[policy]\na = 1", "a scheduling policy"),
        ("[users.alice]\nqueue = -1", "queue of alice must be a whole number"),
    ],
)
def test_toml_that_is_refused(line: str, message: str, file: Path) -> None:
    file.write_text(f"history = 5\n{line}\n")
    with pytest.raises(InvalidArgument, match=f"in {file}:2 must be .*{message}"):
        load({}, NOWHERE, file)


def test_what_is_long_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidArgument) as caught:
        load({"log_level": "x" * 10_000}, NOWHERE)
    assert len(str(caught.value)) < 300


# -- names ---------------------------------------------------------------------------------------


def test_an_unknown_key_is_named_with_its_place(file: Path) -> None:
    file.write_text('history = 5\n\nlog_levle = "info"\n')
    with pytest.raises(
        InvalidArgument, match=f"log_levle in {file}:3 is unknown; did you mean log_level"
    ):
        load({}, NOWHERE, file)
    file.write_text("[zzz]\n")
    with pytest.raises(InvalidArgument, match=f"zzz in {file}:1 is unknown; there are socket, "):
        load({}, NOWHERE, file)


def test_an_unknown_flag_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"sokket among the flags .* did you mean socket"):
        load({"sokket": "x"}, NOWHERE)


def test_a_variable_that_can_only_be_a_slip() -> None:
    with pytest.raises(InvalidArgument, match="GPUD_MEMROY is unknown; did you mean GPUD_MEMORY"):
        load({}, {**NOWHERE, "GPUD_MEMROY": "1"})
    load({}, {**NOWHERE, "GPUD_DEBUG": "1", "GPUD_STRUCTURED_KERNELS": "1", "MEMORY": "1"})


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"history = \n", "no valid TOML: .*line 1"),
        (b"history = 1\nhistory = 2\n", "no valid TOML"),
        (b"history = '\xff'\n", "no valid TOML"),
        (b"#" * (1 << 20) + b"#", "over 1 MiB"),
    ],
    ids=["syntax", "twice", "no-utf-8", "large"],
)
def test_what_is_no_file_of_settings(data: bytes, message: str, file: Path) -> None:
    file.write_bytes(data)
    with pytest.raises(InvalidArgument, match=message):
        load({}, NOWHERE, file)


def test_a_file_that_is_named_must_be_there(file: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        load({}, NOWHERE, file)
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        load({}, {**NOWHERE, "GPUD_CONFIG": str(file)})
    with pytest.raises(InvalidArgument, match="cannot be read: Is a directory"):
        load({}, NOWHERE, file.parent)


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "system.toml"
    monkeypatch.setattr("gpud.config.sources._SYSTEM_FILE", system)
    home, own = tmp_path / ".config/gpud/gpud.toml", tmp_path / "own/gpud/gpud.toml"
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/7"}
    assert config_file(environ) is None
    for path in (system, home, own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"history = {len(str(path))}\n")
    system.touch()
    assert config_file({**environ, "XDG_CONFIG_HOME": str(tmp_path / "own")}) == own
    assert config_file({**environ, "XDG_CONFIG_HOME": "own"}) == home
    assert config_file(environ) == home
    home.unlink()
    assert config_file(environ) == system
    assert load({}, environ).history == len(str(system))
    named = {**environ, "GPUD_CONFIG": str(own)}
    assert load({}, named).history == len(str(own))
    assert load({}, named, system).history == len(str(system))


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GPUD_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    monkeypatch.setenv("GPUD_HISTORY", "77")
    assert load().history == 77


# -- amounts -------------------------------------------------------------------------------------


def test_memory_is_worked_out_in_bytes() -> None:
    found = load({"memory": "50%", "session_memory": "25%", "user_memory": "8 KiB"}, NOWHERE)
    assert found.memory_bytes(80001, "cpu") == found.memory_bytes(80001, "cuda") == 40000
    assert found.session_memory_bytes(40000) == 10000
    assert found.user_memory_bytes(40000) == 8192
    assert found.user_memory_bytes(1000) == 1000
    assert load({"memory": "4097"}, NOWHERE).memory_bytes(8001, "cpu") == 4097
    assert load({"memory": "9 KiB"}, NOWHERE).memory_bytes(8001, "cpu") == 8001
    with pytest.raises(InvalidArgument, match="from 4 KiB"):
        load({"memory": "10"}, NOWHERE)


def test_a_gpu_is_for_arrays_and_a_machine_for_processes_too() -> None:
    config = load({}, NOWHERE)
    assert config.memory_bytes(2000, "cuda") == 1900
    assert config.memory_bytes(2000, "cpu") == 1000


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("0%", 0), ("0.0", 0), ("2", 2), ("25%", Fraction(5, 2)), ("1/3", Fraction(1, 3))],
)
def test_the_floor_is_exact(text: str, amount: Fraction) -> None:
    config = load({"offline_floor": text}, NOWHERE)
    found = scheduler_settings(config).floor(10)
    assert found == amount
    assert isinstance(found, Fraction)


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Config().history = 3  # type: ignore[misc]


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "gpud.toml"
    os.mkfifo(path)
    with pytest.raises(InvalidArgument, match="FIFO"):
        load({}, environ={"HOME": str(tmp_path)}, file=path)
