"""The n-th call of the device fails, for n = 1, 2, 3 ... until everything passes."""

from __future__ import annotations

import pytest

from campaigns.host_failures.device_calls import INJECTED, KINDS
from campaigns.host_failures.injection import MOST_CALLS, inject

pytestmark = pytest.mark.ci


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "first"), [*zip(KINDS, (1, 5, 9), strict=True)])
async def test_the_nth_device_call_fails(kind: str, first: int) -> None:
    # Every call of every kind: campaigns/host_failures/run.py.
    found = await inject(kind, range(first, MOST_CALLS, 13))
    assert sum(found.failed.values()) > 5
    if kind == "lost":
        assert all(INJECTED in reason for reason in found.hosts.ended)
    print(f"{kind}: up to {found.most} calls; failed: {dict(found.failed)}")
