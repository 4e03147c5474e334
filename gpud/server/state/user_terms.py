"""What the configuration says of a user: by name, by groups, and of everybody."""

from __future__ import annotations

import grp
import os
import pwd

from gpud.config import EVERYBODY, Config, UserTerms

__all__ = ["group_names", "terms_of"]


def terms_of(config: Config, uid: int) -> UserTerms:
    """Return the terms of a user: the user's own, then those of groups, then of everybody."""
    terms = UserTerms()
    if not (config.users or config.groups):
        return terms
    for name in (_name(uid), str(uid)):
        terms = terms.or_else(config.users.get(name, UserTerms()))
    if config.groups:
        groups = group_names(uid)
        for name, of_group in config.groups.items():
            if name in groups:
                terms = terms.or_else(of_group)
    return terms.or_else(config.users.get(EVERYBODY, UserTerms()))


def group_names(uid: int) -> frozenset[str]:
    """Return the names and numbers of the groups that a user is in."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    names = set()
    for number in os.getgrouplist(entry.pw_name, entry.pw_gid):
        names.add(str(number))
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(names)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
