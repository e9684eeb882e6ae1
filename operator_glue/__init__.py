"""The operator of drainagent: the ModelDeployment resource and what is rendered from it."""
