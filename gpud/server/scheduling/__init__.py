"""Runs the scheduler: feeds it events, carries out its commands, keeps the jobs' records."""
