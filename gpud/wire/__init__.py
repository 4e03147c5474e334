"""Bytes <-> messages, without any I/O; shared by the daemon, its children and its clients.

`gpud.wire.framing` cuts a stream into frames, `gpud.wire.message_table` turns a frame's body into a
checked message and back, `gpud.wire.field_types` says what a field may hold, `gpud.wire.messages`
declares the messages of the client protocol and `gpud.wire.socket_path` where a daemon is found.
"""
