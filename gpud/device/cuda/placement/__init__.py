"""On which SMs blocks are: partitions, compaction, and which blocks leave first."""
