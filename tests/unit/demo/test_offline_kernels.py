"""The result checks of the demo's kernels accept correct results and detect wrong ones.

The kernels themselves are run by tests/integration/test_demo.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from gpud.demo.offline_kernels import (
    OFFLINE,
    Array,
    OfflineKernel,
    Problem,
    black_scholes,
    differences,
    runs_wrong,
)
from gpud.demo.online_network import BATCH, INPUTS, WIDTH, network

KINDS = {kind.name: kind for kind in OFFLINE}


def arrays(problem: Problem) -> list[Array]:
    """Returns the array arguments, in order."""
    return [argument for argument in problem.arguments if isinstance(argument, np.ndarray)]


def test_counts_of_runs() -> None:
    runs = np.full(10, 3, np.uint32)
    assert runs_wrong(runs, 3) == ""
    runs[2], runs[7] = 2, 4
    assert runs_wrong(runs, 3) == "1 task blocks ran too seldom, 1 too often"


def test_differences() -> None:
    right = np.ones((4, 4))
    assert differences(right, right, rtol=0) == ""
    for value in (1.1, np.nan):
        wrong = right.copy()
        wrong[1, 2] = value
        assert "1 of 16 results are wrong, the first at (1, 2)" in differences(wrong, right, 1e-3)
    assert differences(right + 1e-4, right, rtol=1e-3) == ""


def test_black_scholes_agrees_with_the_book() -> None:
    # Hull, "Options, Futures, and Other Derivatives", gives put-call parity and the two limits.
    prices = black_scholes(np.array([1e-6, 100.0, 1e6]))
    assert prices[0] == pytest.approx(100.0, abs=1e-4)
    assert prices[1] == pytest.approx(11.348, abs=1e-3)  # S = K = 100, r = 3 %, sigma = 25 %
    assert prices[2] == pytest.approx(0.0, abs=1e-9)


def right_result(name: str) -> tuple[Array, str]:
    """Returns a correct result, and the check's message for it with one element corrupted."""
    problem = KINDS[name].make(20, 8)
    if name == "matmul":
        a, b = arrays(problem)[:2]
        result = (8 * (a @ b)).astype(np.float32)
    else:
        exact = black_scholes(arrays(problem)[0].astype(np.float64))
        result = np.stack([exact, np.full(20, 0.05)], axis=1).astype(np.float32)
    assert problem.wrong(result) == ""
    spoilt = result.copy()
    spoilt.flat[0] += 1
    return result, problem.wrong(spoilt)


def test_the_check_of_the_matrix_product_sees_one_wrong_element() -> None:
    assert "1 of" in right_result("matmul")[1]


def test_the_check_of_the_prices_sees_one_wrong_price() -> None:
    assert "1 of 20 prices" in right_result("pricer")[1]


def test_a_price_without_an_error_is_wrong() -> None:
    problem = KINDS["pricer"].make(4, 8)
    assert "4 of 4" in problem.wrong(np.zeros((4, 2), np.float32))


def test_the_check_of_the_step_sees_bodies_that_did_not_move() -> None:
    problem = KINDS["nbody"].make(4, 2)
    _, place, speed, *_ = arrays(problem)
    assert problem.wrong(place) != ""
    # Without heavy bodies they move on straight: near, but not right.
    straight = place + np.float32(0.01) * speed
    assert problem.wrong(straight) != ""


def test_rounds_that_float32_cannot_count_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 cannot hold"):
        KINDS["matmul"].make(4, 1 << 20)


@pytest.mark.parametrize("kind", OFFLINE, ids=lambda kind: kind.name)
def test_problems_are_the_same_every_time(kind: OfflineKernel) -> None:
    first, again = kind.make(9, 16), kind.make(9, 16)
    assert first.total >= 9
    assert 16 in [one for one in first.arguments if np.ndim(one) == 0], "the rounds"
    assert arrays(first)[-1].size == first.total
    for one, other in zip(first.arguments, again.arguments, strict=True):
        assert np.array_equal(one, other)


def test_the_network_gives_probabilities() -> None:
    net = network(3)
    assert net.expected.shape == (INPUTS, BATCH, WIDTH)
    assert np.allclose(net.expected.sum(axis=2), 1)
    assert net.expected.max() > 2 / WIDTH  # the outputs differ between rows
    assert net.wrong(2, net.expected[2].astype(np.float32)) == ""
    spoilt = net.expected[2].astype(np.float32)
    spoilt[5, 5] *= 1.01
    assert "1 of" in net.wrong(2, spoilt)
    assert net.wrong(2, net.expected[3]) != ""
