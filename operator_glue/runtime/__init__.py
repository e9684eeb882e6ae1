"""The process: caches, passes, leader election, what it shows of itself."""
