"""The server: sockets, sessions, child processes, and the runner of the scheduler's commands.

Everything here runs on one event loop, in one thread. Nothing here computes: programs are compiled
in the compile processes, kernels run in the device hosts, and `gpud.core` schedules.

Packages, each of which imports only those before it: `ipc` (sockets, streams, child processes),
`state` (the data that all share), `hosts` (device hosts, compile processes, the runner of the
scheduler's commands), `handlers` (what the messages of clients do). The daemon wires them.
"""
