"""The retirement protocol: whether a replica that the spec no longer wants may be deleted. Pure."""
