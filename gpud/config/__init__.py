"""The daemon's settings: one table, from which file, environment, flags and docs derive.

`gpud.config.settings` is the table; `gpud.config.setting_types`, `gpud.config.quantity_types` and
`gpud.config.user_terms` parse and check values; `gpud.config.sources` merges flags, environment and
file.
"""

from __future__ import annotations

from gpud.config.settings import SETTINGS, Config, Setting
from gpud.config.sources import config_file, load
from gpud.config.user_terms import EVERYBODY, UserTerms

__all__ = ["EVERYBODY", "SETTINGS", "Config", "Setting", "UserTerms", "config_file", "load"]
