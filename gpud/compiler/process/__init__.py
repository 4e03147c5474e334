"""The compile process: a confined process with limits that compiles for the daemon."""
