"""The daemon's settings: one table, from which file, environment, flags and docs derive.

`gpud.config.settings` is the table; `gpud.config.setting_types`, `gpud.config.quantity_types` and
`gpud.config.user_terms` parse and check values; `gpud.config.sources` merges flags, environment and
file; `gpud.config.editing` changes the file.
"""

from __future__ import annotations

from gpud.config.editing import edited, replace_file
from gpud.config.settings import SETTINGS, Config, Setting, Sources
from gpud.config.sources import config_file, file_to_write, load, load_again
from gpud.config.user_terms import EVERYBODY, UserTerms

__all__ = [
    "EVERYBODY",
    "SETTINGS",
    "Config",
    "Setting",
    "Sources",
    "UserTerms",
    "config_file",
    "edited",
    "file_to_write",
    "load",
    "load_again",
    "replace_file",
]
