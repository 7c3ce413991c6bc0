"""What the runner fabric does to the world."""
