"""The stores themselves: a folder that we serve, and S3."""
