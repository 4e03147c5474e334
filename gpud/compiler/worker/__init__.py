"""The compile worker: a process, confined and limited, that compiles for the daemon."""
