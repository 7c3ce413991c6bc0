"""The runner fabric: media work on machines nobody trusts. Rules are here, effects under `io/`."""
