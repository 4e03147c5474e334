"""Faulting kernels on a GPU: their job fails with the reason, the context and others continue."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.errors import IllegalAddress, KernelTrap
from tests.gpu.fault_world import World


@pytest.fixture
def world(device: Any) -> World:
    return World(device)


@pytest.mark.gpu
@pytest.mark.parametrize("at", [1 << 28, 1 << 40, -(1 << 20)])
def test_a_store_out_of_the_arena(world: World, at: int) -> None:
    error = world.run("store", [at.to_bytes(8, "little", signed=True)])
    assert isinstance(error, IllegalAddress)
    assert not world.ints().any()
    world.lives()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["traps", "breaks", "asserts"])
def test_a_trap(world: World, name: str) -> None:
    assert isinstance(world.run(name), KernelTrap)
    world.lives()
