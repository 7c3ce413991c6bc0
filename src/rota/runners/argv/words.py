"""Tables as text: names in a row read better, and differ better, than a list of quoted ones."""


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())
