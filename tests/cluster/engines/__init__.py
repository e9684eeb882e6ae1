"""Real engines in Pods while they are deleted. See README.md."""
