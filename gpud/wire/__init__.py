"""The wire protocol: bytes <-> messages, without I/O; shared by the daemon, its children, clients.

`gpud.wire.framing` splits a stream into frames, `gpud.wire.message_table` decodes a frame's body
into a validated message and encodes it, `gpud.wire.field_types` defines what a field may hold,
`gpud.wire.messages` declares the messages of the client protocol, and `gpud.wire.socket_path`
determines the path of the daemon's socket.
"""
