"""A setting is changed in the file, and nothing else; what is read again is what is there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpud.config import SETTINGS, Setting, edited, file_to_write, load, load_again, replace_file
from gpud.errors import InvalidArgument

BY_KEY = {setting.key: setting for setting in SETTINGS}
FILE = """\
# What our lab has agreed on.
grace = "2 s"   # not more
rebalance_limit = 5
devices = [
  "cpu:2",  # for tests
]

# Who may have what.
[users.alice]
weight = 2 # she asked
"""


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("grace", "3 s", 'grace = "2 s"   # not more', 'grace = "3 s"   # not more'),
        ("rebalance_limit", "7", "rebalance_limit = 5", "rebalance_limit = 7"),
        ("log_level", "debug", "]\n\n# Who", ']\nlog_level = "debug"\n\n# Who'),
        ("bounds_checks", "off", "]\n\n# Who", "]\nbounds_checks = false\n\n# Who"),
        ("dump_kernels", "a*, b", "]\n\n# Who", ']\ndump_kernels = ["a*", "b"]\n\n# Who'),
    ],
)
def test_only_the_setting_is_changed(key: str, value: str, before: str, after: str) -> None:
    assert edited(FILE, BY_KEY[key], value) == FILE.replace(before, after)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "hold = '1 s'"),
        ("grace = '2 s'", "grace = '2 s'\nhold = '1 s'"),
        ("# ours\n\n[users.bob]\nqueue = 1\n", "hold = '1 s'\n[users.bob]\nqueue = 1"),
        ("dump_kernels = [\n'[a]',\n['b']]\n", "dump_kernels = ['[a]', ['b']]\nhold = '1 s'"),
        ("x = '''\n[users]\n'''\n[users]", "x = '''\n[users]\n'''\nhold = '1 s'\n[users]"),
    ],
)
def test_a_new_setting_is_in_no_table(text: str, expected: str) -> None:
    found = edited(text, BY_KEY["hold"], "1 s")
    assert tomllib.loads(found) == tomllib.loads(expected)
    assert all(line in found for line in text.splitlines())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("grace", "soon", "grace must be .* not 'soon'"),
        ("rebalance_limit", "0", "rebalance_limit must be a whole number from 1 to 100; not '0'"),
        ("users", "alice = {weight = 2}", "users must be written into the file by hand"),
    ],
)
def test_what_is_not_allowed_is_said(key: str, value: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        edited(FILE, BY_KEY[key], value)


WITH_DEFAULT = [(one, one.default) for one in SETTINGS if one.default is not None]


@pytest.mark.parametrize(("setting", "default"), WITH_DEFAULT, ids=lambda one: str(one)[:9])
def test_every_default_can_be_set(setting: Setting, default: str) -> None:
    value = tomllib.loads(edited(FILE, setting, default))[setting.key]
    assert setting.type.from_toml(value) == setting.type.from_text(default)


def test_a_file_is_replaced_with_its_mode_and_where_a_link_points(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles/gpud.toml", tmp_path / "gpud.toml"
    link.symlink_to(real)
    replace_file(link, "a = 1\n")
    real.chmod(0o640)
    replace_file(link, "a = 2\n")
    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("a = 2\n", 0o640)
    assert [path.name for path in real.parent.iterdir()] == ["gpud.toml"]


def test_settings_are_read_again_from_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpud.config.sources._SYSTEM_FILE", tmp_path / "etc.toml")
    environ = {"HOME": str(tmp_path), "GPUD_GRACE": "4 s"}
    config = load({"hold": "1 s"}, environ)
    assert config.sources is not None
    path = file_to_write(config.sources)
    replace_file(path, "grace = '5 s'\nhold = '5 s'\nmax_connections = 7\n")
    again = load_again(config.sources)
    assert (again.grace_ns, again.hold_ns, again.max_connections) == (4 * 10**9, 10**9, 7)
    assert again.origin("max_connections") == f"{path}:3"
    said = load_again(config.sources, "max_connections = 8\n")
    assert (said.max_connections, said.origin("max_connections")) == (8, f"{path}:1")
    with pytest.raises(InvalidArgument, match=f"{path}:1 must be"):
        load_again(config.sources, "max_connections = 'x'\n")
