"""How a kernel can be resized: its form, the rules against each form, and the classifier."""
