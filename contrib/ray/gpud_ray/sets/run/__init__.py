"""Runs a task set on nodes: a scheduler, a framework process a node, an executor a GPU."""
