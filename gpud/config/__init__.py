"""The daemon's settings: one table, from which file, environment, flags and docs derive.

`gpud.config.settings` is the table, `gpud.config.kinds` says how a value is written, and
`gpud.config.sources` brings the sources together.
"""

from __future__ import annotations

from gpud.config.settings import SETTINGS, Config, Setting
from gpud.config.sources import config_file, load

__all__ = ["SETTINGS", "Config", "Setting", "config_file", "load"]
