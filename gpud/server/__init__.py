"""The edge: sockets, sessions, child processes, and the runner of the scheduler's decisions.

Everything here runs on one event loop, in one thread. Nothing here computes: programs are compiled
in the compile worker, kernels run in the device hosts, and `gpud.core` decides.

Packages, in the order in which a launch flows: `ipc` (bytes to frames, child processes), `clients`
(frames to messages, one handler for each), `compilation`, `arrays`, `scheduling` (the scheduler and
its commands), `hosts` (the device hosts), and back the same way.
"""
