"""The server: sockets, sessions, child processes, and the runner of the scheduler's commands.

Everything here runs on one event loop, in one thread. Nothing here computes: programs are compiled
in the compile workers, kernels run in the device hosts, and `gpud.core` schedules.

Packages, in the order in which a launch flows: `ipc` (bytes to frames, child processes), `clients`
(frames to messages, a handler for each), `compilation`, `arrays`, `scheduling` (events to the
scheduler, and its commands), `hosts` (the device hosts). Results go back the same way.
"""
