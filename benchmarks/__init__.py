"""What the agent costs, as ratios measured in one run."""
