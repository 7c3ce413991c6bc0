"""The effects of the slot broker: sockets, processes, pipes."""
