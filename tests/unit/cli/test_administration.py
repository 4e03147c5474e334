"""What gpuctl asks for, and says, to pause devices and to end the daemon."""

from __future__ import annotations

import json

import pytest

from gpud.wire.messages import Drain, Pause
from gpud_client.cli import main
from gpud_client.cli.exit_status import DONE, USAGE
from tests.unit.cli.scripted_daemon import ANSWERS, DEVICE, Peer

PAUSED = {"by": "alice", "since": "2026-11-23 14:02", "now": False}


def test_pause_and_resume_name_devices_and_what_is_there(
    peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", "--now", "--device", "cpu:8", "--device", "0"]) == DONE
    assert capsys.readouterr().out == "device 0 (cpu:8) is paused: jobs: 1 running on, 2 waiting\n"
    assert main(["resume", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["devices"][0]["paused"] is None
    asked = [message[1:] for message in peer.of(Pause)]
    assert asked == [((0, 0), True, True), ((), False, False)]
    assert main(["pause", "--device", "7"]) == USAGE
    assert "there is no device 7; there are 0 (cpu:8)" in capsys.readouterr().err


def test_drain_says_what_is_waited_for(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "--wait"]) == DONE  # the scripted daemon hangs up after three events
    assert "ends after 3 jobs, in 30.00 s at most" in capsys.readouterr().out
    assert len(peer.of(Drain)) == 1


def test_who_has_paused_a_device_is_shown(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.answers["status"] = {**ANSWERS["status"], "devices": [{**DEVICE, "paused": PAUSED}]}
    assert main(["status"]) == DONE
    assert "device 0 is paused by alice since 2026-11-23 14:02" in capsys.readouterr().out
    assert main(["top", "--count", "1"]) == DONE
    assert "paused by alice since 2026-11-23 14:02" in capsys.readouterr().out
