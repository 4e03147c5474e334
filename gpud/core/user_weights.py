"""The weights that make shares fair by user first, and then by job.

Problem: a user with ten jobs must not get ten times the share of a user with one. Shares, service
and victims are all computed from the weights of jobs.

Approach: a job's weight is multiplied by a *factor* of its user, so that all that goes by weights
goes by users first. Factors are those for which a job's weight is its part of the capacity that
online jobs leave to offline ones on the average, lately: what a user cannot use of its own part, it
then need not lack while there is less. See `gpud.core.weighing`.

Terms (units in brackets):
    demand of a user [amount]: what its offline jobs can use, by their quotas, their grids, and the
        user's cap;
    due of a user [amount]: its part of the device by weighted max-min of the demands;
    factor [amount by weight]: the level to which the due of a user raises the user's own jobs.

When online jobs leave more or less than on the average, all parts are that in proportion.

Properties:
    by_user: users' shares are to each other as the users' weights, however many jobs they have, as
        far as these can use them;
    by_job: shares of one user's jobs are to each other as the jobs' weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from gpud.core.job import JobRecord
from gpud.core.users import Account

__all__ = ["factors"]

_SHIFT = 24  # levels in 1/SCALE CapSM are finer than weights need to be


def factors(capacity: int, jobs: Iterable[JobRecord]) -> dict[int, int]:
    """Return the factor of each user with offline jobs that share this capacity, by number."""
    accounts: dict[int, Account] = {}
    rows: dict[int, list[tuple[int, int]]] = {}  # of each job: (weight, what it can use)
    for job in jobs:
        account = job.account
        accounts[account.user.number] = account
        row = (job.submission.weight, max(1, job.most) * job.slice)
        rows.setdefault(account.user.number, []).append(row)
    demands = []
    for number, account in accounts.items():
        demand = sum(most for _, most in rows[number])
        if account.hold is not None:
            demand = min(demand, max(0, account.hold - account.online))
        demands.append((account.user.weight, demand))
    common, dues = _shares(capacity, demands)
    factor_of = {}
    for (number, account), due in zip(accounts.items(), dues, strict=True):
        own, _ = _shares(due, rows[number])
        if own is None:  # all have what they can use: their weights may not hold them back
            weights = sum(weight for weight, _ in rows[number])
            own = max(most // weight for weight, most in rows[number])
            own = max(own, (common or 0) * account.user.weight // weights)
        factor_of[number] = max(1, own >> _SHIFT)
    return factor_of


def _shares(total: int, rows: Sequence[tuple[int, int]]) -> tuple[int | None, list[int]]:
    """Return the weighted max-min shares of rows of (weight, most), and their common level.

    The level, amount by weight, is that of the rows that do not get their most; None if all do.
    """
    weight = sum(row[0] for row in rows)
    shares = [most for _, most in rows]
    order = sorted(range(len(rows)), key=lambda at: Fraction(rows[at][1], rows[at][0]))
    for done, index in enumerate(order):
        own, most = rows[index]
        if most * weight > total * own:
            for at in order[done:]:
                shares[at] = total * rows[at][0] // weight
            return total // weight, shares
        total -= most
        weight -= own
    return None, shares
