"""Bounds checks tested before loops over threads (loop versioning), and the analyses for that."""
