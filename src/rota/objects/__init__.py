"""Object stores: where media lies, and URLs that lend one object for one method and a short time."""
