"""PTX: text to tree, tree to text, and structural checks."""
