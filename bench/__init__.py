"""Measures Rota on this machine as ratios within one run, never as bare seconds. See README.md."""
