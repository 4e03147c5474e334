"""The pure core of tasks: events in, commands out; `gpud.tasks.core.scheduler` is the entrance."""
