"""The compile worker: a confined process with limits that compiles for the daemon."""
