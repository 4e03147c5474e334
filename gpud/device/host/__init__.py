"""The device host: one process for each device, so that a device fault ends only that process.

``python -m gpud.device.host --device cpu:8 --fd N`` serves one device over an inherited socket: see
`gpud.device.host.messages`.
"""
