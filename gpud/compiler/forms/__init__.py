"""Chooses the form of a kernel: the rules against each form, and the classifier."""
