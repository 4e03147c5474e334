"""PTX to PTX: inlining, checks as pseudo-instructions, split registers, bounds checks."""
