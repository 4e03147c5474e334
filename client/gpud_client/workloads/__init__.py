"""Workloads: loops whose iterations take turns with a device's memory.

What a workload keeps across iterations is *persistent* and has its own region of the device's
memory; what it needs within one is *temporary* and lies in memory that all workloads of a device
use in turns. So a device holds workloads whose needs add up to more than it has.
"""
