"""What the integration tests run against; here things go wrong in it."""

from tests.integration.conftest import gpu, world

__all__ = ["gpu", "world"]
