"""The scheduler: a pure state machine, events in and commands out.

No I/O, no clock, no randomness: `gpud.server` feeds it `gpud.core.events` and carries out the
`gpud.core.commands` that it answers with. Read `scheduler` first, then `policies.reservations`.
"""
