"""A pytest plugin that gives Numba's tests the fixture that its wheel lacks."""

import pytest


@pytest.fixture
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    request.instance._dump_failed_filechecks = False
