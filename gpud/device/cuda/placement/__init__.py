"""Placement on SMs: partitions, compaction, and which blocks a shrinking launch releases first."""
