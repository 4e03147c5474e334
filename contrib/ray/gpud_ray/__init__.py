"""Several machines with gpud, on Ray: each item runs on the node whose GPUs are the most idle."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
