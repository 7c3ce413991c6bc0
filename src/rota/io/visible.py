"""Text of jobs, handlers and other machines as a terminal may show it."""


def visible(text: str) -> str:
    """The same text with what would drive a terminal, or turn its line around, made visible; lines stay lines."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)
