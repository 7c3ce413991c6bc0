"""Effects of the runner fabric: the database, the gateway's sockets, and the machines that run ops."""
