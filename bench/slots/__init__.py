"""Measures the slot broker: `python -m bench slots [WORK…]`."""
