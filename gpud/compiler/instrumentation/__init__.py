"""Checks that passes plant in PTX: one canonical sequence each, with an emitter and a matcher."""
