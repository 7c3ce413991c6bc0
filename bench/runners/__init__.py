"""The runner fabric: an op against a bare HTTP and websocket echo, an assignment against a NOTIFY and a claim."""
