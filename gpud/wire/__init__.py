"""Bytes <-> messages, without any I/O; shared by the daemon, its children and its clients.

`gpud.wire.codec` cuts a stream into frames, `gpud.wire.table` turns a frame's body into a checked
message and back, `gpud.wire.kinds` says what a field may hold, `gpud.wire.messages` declares the
messages of the client protocol and `gpud.wire.address` where a daemon is found.
"""
