"""The operator on the real cluster, end to end."""
