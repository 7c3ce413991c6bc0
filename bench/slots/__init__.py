"""The slot broker: commands against a bare spawn loop, pipes against curl through nginx."""
