"""The daemon's settings: one table, from which file, environment, flags and docs derive.

`gpud.config.settings` is the table, `gpud.config.setting_types` parses and checks values, and
`gpud.config.sources` merges flags, environment and file.
"""

from __future__ import annotations

from gpud.config.settings import SETTINGS, Config, Setting
from gpud.config.sources import config_file, load

__all__ = ["SETTINGS", "Config", "Setting", "config_file", "load"]
