"""Tasks: whole programs in queues, with cores and GPUs of one node or several.

`gpud.tasks.core` decides, `gpud.tasks.store` keeps, `gpud.tasks.runner` runs.
"""
