"""Handles settings: shows them, reads them again, and keeps one in the file.

Problem: most of what a lab changes after the first week, such as limits of users, should not cost a
restart; but devices, sockets and the scheduler's rules are fixed while the daemon runs. Whoever
changes something must be told which it is.

Approach: the settings are loaded as at the start, from the same flags, variables and file. Those
that the table calls live are put in force; of the others it is kept what the next start will have.
Files are read and written in a thread, one change at a time.

Properties:
    all_or_nothing: what cannot be used changes nothing, neither in force nor in the file;
    told: what differs from what is in force is shown as such until a restart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from gpud.config import (
    SETTINGS,
    Config,
    Setting,
    Sources,
    edited,
    file_to_write,
    load_again,
    replace_file,
)
from gpud.errors import GpudError, InvalidArgument, UnknownName
from gpud.server.handlers.administration import check_administrator
from gpud.server.handlers.answers import Steps
from gpud.server.hosts.runner import Runner
from gpud.server.ipc import systemd
from gpud.server.shared import SharedState
from gpud.server.state.access import may_manage
from gpud.server.state.session import Session, internal_error
from gpud.wire import messages as wm

__all__ = ["Configuration"]

_LOG = logging.getLogger(__name__)
_OF_USERS = ("users", "groups")
_BY_KEY = {setting.key: setting for setting in SETTINGS}


class Configuration:
    """The daemon's settings.

    Args:
        state: has those in force.
        runner: is told what users may have.
        check: raises if settings cannot be used together.
        put_in_force: has the other parts use the settings that can change.
    """

    def __init__(
        self,
        state: SharedState,
        runner: Runner,
        *,
        check: Callable[[Config], None],
        put_in_force: Callable[[Config], None],
    ) -> None:
        self._state = state
        self._runner = runner
        self._check = check
        self._put_elsewhere = put_in_force
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def query(self, session: Session) -> Steps[dict[str, Any]]:
        """Show all settings; what is said of users only to who manages them all."""
        manages = may_manage(session.peer, -1)
        yield
        return {"settings": [self._row(setting, manages=manages) for setting in SETTINGS]}

    def set(self, session: Session, message: wm.SetSetting) -> None:
        """Handle `SetSetting`: answer when the file is written and read."""
        check_administrator(session, "change settings")
        setting = _BY_KEY.get(message.key)
        if setting is None:
            raise UnknownName(f"there is no setting {message.key}; gpuctl config show lists them")
        self._answer(session, message.request, self._set(setting, message.value))

    def reload(self, session: Session, message: wm.Reload) -> None:
        """Handle `Reload`: answer when the file is read."""
        check_administrator(session, "change settings")
        self._answer(session, message.request, self._reload())

    def on_hangup(self) -> None:
        """Read the settings again, and say in the log what has changed."""

        async def reload() -> None:
            usec = time.monotonic_ns() // 1000
            systemd.notify(f"RELOADING=1\nMONOTONIC_USEC={usec}")
            try:
                await self._reload()
            except GpudError as error:
                _LOG.error("the settings stay as they are: %s", error)
            finally:
                systemd.notify("READY=1")

        self._start(reload())

    # -- helpers

    def _answer(
        self, session: Session, request: int, work: Coroutine[Any, Any, dict[str, Any]]
    ) -> None:
        async def answer() -> None:
            value, problem = None, None
            try:
                value = await work
            except GpudError as error:
                problem = error
            except Exception as error:  # noqa: BLE001 - one message must not stop the daemon
                _LOG.exception("a change of settings was not handled")
                problem = internal_error(error)
            if not session.gone:
                session.reply(request, value, problem)

        self._start(answer())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sources(self) -> Sources:
        sources = self._state.config.sources
        if sources is None:
            raise InvalidArgument("this daemon was given its settings by a program, not by a file")
        return sources

    async def _set(self, setting: Setting, value: str) -> dict[str, Any]:
        sources = self._sources()
        async with self._one_at_a_time:
            await asyncio.to_thread(load_again, sources)  # what is there must be valid
            path = file_to_write(sources)
            text = edited(await asyncio.to_thread(_text_of, path), setting, value)
            config = load_again(sources, text)
            self._check(config)
            try:
                await asyncio.to_thread(replace_file, path, text)
            except OSError as error:
                problem = f"{path} cannot be written: {error.strerror}"
                raise InvalidArgument(
                    f"{problem}; write {setting.key} into it as who may, then gpuctl config reload"
                ) from None
            return {**self._apply(config), "set": self._row(setting, manages=True)}

    async def _reload(self) -> dict[str, Any]:
        sources = self._sources()
        async with self._one_at_a_time:
            config = await asyncio.to_thread(load_again, sources)
            self._check(config)
            return self._apply(config)

    def _apply(self, config: Config) -> dict[str, Any]:
        """Put in force what can be, and return what has changed."""
        old = self._state.config
        different = [s for s in SETTINGS if getattr(old, s.name) != getattr(config, s.name)]
        live = [setting for setting in different if setting.live]
        same = [s.name for s in SETTINGS if s not in different]
        self._put_in_force(old, config, [*same, *(setting.name for setting in live)])
        self._state.next_config = config
        for setting in different:
            value = setting.type.to_text(getattr(config, setting.name))
            shown = "changed" if setting.key in _OF_USERS else f"{value} now"
            if setting.live:
                _LOG.info("settings: %s is %s", setting.key, shown)
            else:
                _LOG.warning("settings: %s = %s needs a restart", setting.key, value)
        if not different:
            _LOG.info("settings: nothing has changed")
        assert config.sources is not None
        path = file_to_write(config.sources)
        return {
            "file": str(path) if path.exists() else None,
            "changed": [self._row(setting, manages=True) for setting in live],
            "restart": [self._row(s, manages=True) for s in different if not s.live],
        }

    def _put_in_force(self, old: Config, config: Config, names: Sequence[str]) -> None:
        values = {name: getattr(config, name) for name in names}
        origins = {name: config.origins[name] for name in names if name in config.origins}
        kept = {name: text for name, text in old.origins.items() if name not in names}
        new = dataclasses.replace(old, **values, origins={**kept, **origins})
        self._state.change_config(new)
        self._put_elsewhere(new)
        now_ns = time.monotonic_ns()
        for user in self._state.users.all():
            self._runner.announce(user, now_ns)

    def _row(self, setting: Setting, *, manages: bool) -> dict[str, Any]:
        config, following = self._state.config, self._state.next_config
        shown = manages or setting.key not in _OF_USERS
        value, following_value = (getattr(one, setting.name) for one in (config, following))

        def text(one: Any) -> str | None:
            return None if one is None or not shown else setting.type.to_text(one)

        differs = value != following_value
        return {
            "key": setting.key,
            "value": text(value),
            "origin": config.origin(setting.key),
            "next": text(following_value) if differs else None,
            "next_origin": following.origin(setting.key) if differs else None,
            "live": setting.live,
            "shown": shown,
            "meaning": setting.meaning,
        }


def _text_of(path: Path) -> str:
    """Return what a file has, which was just read; nothing if it is not there."""
    return path.read_text() if path.exists() else ""
