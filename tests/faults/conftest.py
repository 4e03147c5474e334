"""The world of the integration tests, with what goes wrong in it."""

from tests.integration.conftest import world

__all__ = ["world"]
