"""The scheduler: a pure state machine, events in and commands out.

No I/O, no clock, no randomness: `gpud.server` passes in `gpud.core.events` and executes the
`gpud.core.commands` that are returned. Read `scheduler` first, then `policies.reservations`.
"""
