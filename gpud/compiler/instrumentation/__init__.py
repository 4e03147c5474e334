"""Checks that passes insert into PTX: one canonical sequence each, with emitter and matcher."""
