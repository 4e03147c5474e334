"""PTX: the syntax tree, its parser and printer, and structural checks."""
