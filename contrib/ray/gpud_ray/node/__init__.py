"""What runs on each node: an agent in front of the node's gpud."""
