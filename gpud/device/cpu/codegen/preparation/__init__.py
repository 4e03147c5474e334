"""PTX-to-PTX passes before code generation: inlining, pseudo-instructions, bounds checks."""
