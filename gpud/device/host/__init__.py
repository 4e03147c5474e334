"""The device host: a process of its own for each device, so that a device's fault ends only it.

``python -m gpud.device.host --device cpu:8 --fd N`` serves one device over a socket that it has
inherited: see `gpud.device.host.messages`.
"""
