"""The edge: sockets, sessions, child processes, and the runner of the scheduler's decisions.

Everything here runs on one event loop, in one thread. Nothing here computes: programs are compiled
in the compile worker, kernels run in the device hosts, and `gpud.core` decides.

How a submission flows, one module a step: `stream` (bytes to frames), `connection` (frames to
messages, one handler for each), `submission` (checks), `runner` (the scheduler and its commands),
`devices` (the device host), and back the same way.
"""
