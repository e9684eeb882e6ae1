"""What is to be made, changed and removed for a ModelDeployment, beside what the retirement protocol decides. Pure."""
