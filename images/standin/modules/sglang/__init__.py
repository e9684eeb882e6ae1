"""Of the stand-in, not the engine."""
