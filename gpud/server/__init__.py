"""The server: sockets, sessions, child processes, and the runner of the scheduler's commands.

Everything here runs on one event loop, in one thread. Nothing here computes: programs are compiled
in the compile workers, kernels run in the device hosts, and `gpud.core` schedules.

Packages, in the order in which a launch flows: `ipc` (bytes to frames, child processes), `clients`
(frames to messages, a handler for each), `compilation`, `scheduling` (the jobs' records), `hosts`
(the device hosts); `runner` feeds events to the scheduler and carries out its commands. Results go
back the same way.
"""
