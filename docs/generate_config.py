"""The reference page of the daemon's settings, made of their table."""

from __future__ import annotations

from collections.abc import Iterator

from gpud.config import SETTINGS, Setting

__all__ = ["config_page"]

_HEAD = """\
# Configuration

<!-- Written by docs/generate.py from gpud/config/settings.py: change that. -->

Every setting can be given in a file, in the environment, and as a flag of `gpud serve`. Where
several say something, the flag decides, then the variable, then the file.

The file is TOML. It is the one that `--config` or `$GPUD_CONFIG` names, which must
exist then; else `$XDG_CONFIG_HOME/gpud/gpud.toml` (by default `~/.config/gpud/gpud.toml`); else
`/etc/gpud/gpud.toml`. Only one file is read. An empty variable is one that is not set.

```toml
# The file, with everything at its default; what has no default is commented out.
{example}
```

A setting that does not exist, or has a value that is not allowed, is an error that names the place,
with the line, and what is allowed; the daemon does not start then, and one that runs goes on as it
was.

`gpuctl config show` says what a daemon runs with, and where each value comes from. After a change
of the file `gpuctl config reload`, or SIGHUP (`systemctl reload gpud`), puts those settings in
force that say below that they change while the daemon runs, and names the others, which need a
restart. `gpuctl config set grace '3 s'` writes the file, with its comments and its order as they
were, and reads it again; where a flag or a variable overrides the file, it says so.

## Settings

"""


_TABLES = {
    "users": "alice = { weight = 2, reserve = '50%', hold = '75%', queue = 100 }",
    "groups": "students = { hold = '25%' }",
}


def config_page() -> str:
    """Return the reference page of the settings."""
    example = "\n".join(_example(setting) for setting in SETTINGS)
    return _HEAD.format(example=example) + "\n".join(map("".join, map(_entry, SETTINGS)))


def _example(setting: Setting) -> str:
    if setting.key in _TABLES:
        return f"# {setting.key}.{_TABLES[setting.key]}"
    if setting.default is None:
        value = "8 GiB" if setting.type.metavar == "SIZE" else "/path"
        return f'# {setting.key} = "{value}"'
    if setting.many:
        return f'{setting.key} = ["{setting.default}"]'
    bare = setting.type.describe().startswith("a whole number")
    return f"{setting.key} = {setting.default}" if bare else f'{setting.key} = "{setting.default}"'


def _entry(setting: Setting) -> Iterator[str]:
    several = (
        "; the flag may be given several times, the variable has commas between" * setting.many
    )
    yield f"### `{setting.key}`\n\n"
    yield f"{setting.meaning[0].upper()}{setting.meaning[1:]}.\n\n"
    yield f"`{setting.flag}`, `{setting.variable}`: {setting.type.describe()}{several}."
    if setting.default is not None:
        yield f" Default: `{setting.default}`."
    yield " Changes while the daemon runs." if setting.live else " Changes at a restart."
    yield "\n"
