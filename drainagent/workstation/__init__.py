"""What runs on a workstation or in a stand-in image, and never goes into an engine's image."""
