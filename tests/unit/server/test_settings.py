"""What device hosts are told of the configuration."""

from __future__ import annotations

from gpud.config import load
from gpud.server.settings import host_arguments, host_limits


def test_hosts_are_told_of_their_compilers_limits_in_seconds_and_bytes() -> None:
    given = {
        "compile_timeout": "1500 ms",
        "compile_memory_bytes": "3 GiB",
        "host_timeout": "250 ms",
    }
    config = load(given, environ={"HOME": "/"})
    arguments = host_arguments(config)
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options["--compile-seconds"] == "1.5"
    assert options["--compile-memory-bytes"] == str(3 << 30)
    limits = host_limits(config)
    assert limits.silent == 0.25
    assert 3.0 < limits.compile < 30, "more than both tries of the host's own limit"
