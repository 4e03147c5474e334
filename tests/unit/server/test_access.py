"""For whom is counted what a subordinate user id uses."""

from __future__ import annotations

from pathlib import Path

from gpud.server.state.access import account_of


def test_subordinate_user_ids_are_their_owners(tmp_path: Path) -> None:
    table = tmp_path / "subuid"
    table.write_text("root:100000:65536\n1234:300000:10\nnobody-knows:400000:9\nnonsense\n:x:\n")
    found = {uid: account_of(uid, table) for uid in (99999, 100000, 165535, 165536, 300009, 400000)}
    assert found == {
        99999: 99999, 100000: 0, 165535: 0, 165536: 165536, 300009: 1234, 400000: 400000,
    }  # fmt: skip
    assert account_of(100000, tmp_path / "none") == 100000
