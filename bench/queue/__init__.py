"""The durable queue against raw SQL on the same database."""
