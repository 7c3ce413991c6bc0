"""ffmpeg's text tokens: how quotes and backslashes come off, and how a text is written so that they come off again.

`take` is libavutil's av_get_token. A graph goes through it twice: the graph takes a filter's arguments, and the filter
takes its options. Some options (lists of codec parameters) go through it a third time.
"""

from dataclasses import dataclass

WHITESPACE = " \n\t\r"


@dataclass(slots=True)
class Cursor:
    """A place in a text."""

    text: str
    at: int = 0

    @property
    def next(self) -> str:
        """The character here; empty at the end."""
        return self.text[self.at : self.at + 1]

    def skip_blanks(self) -> None:
        """Go on to what is no whitespace."""
        while self.next and self.next in WHITESPACE:
            self.at += 1


def take(cursor: Cursor, terminators: str) -> str:
    """Take a token up to a terminator that is neither quoted nor escaped, as av_get_token does.

    Args:
        cursor: The place; it is moved to the terminator or the end.
        terminators: Characters that end the token.

    Returns:
        The token without quotes and escapes. Blanks at both ends are dropped unless they were quoted or escaped.
    """
    cursor.skip_blanks()
    out: list[str] = []
    kept = 0
    while cursor.next and cursor.next not in terminators:
        character = cursor.next
        cursor.at += 1
        if character == "\\" and cursor.next:
            out.append(cursor.next)
            cursor.at += 1
            kept = len(out)
        elif character == "'":
            end = cursor.text.find("'", cursor.at)
            stop = len(cursor.text) if end < 0 else end
            out.extend(cursor.text[cursor.at : stop])
            cursor.at = stop if end < 0 else end + 1
            kept = len(out) if end >= 0 else kept
        else:
            out.append(character)
    while len(out) > kept and out[-1] in WHITESPACE:
        out.pop()
    return "".join(out)


def escape(text: str, special: str) -> str:
    """Write a text so that `take` with these terminators gives it back.

    Args:
        text: The text.
        special: Characters to escape beside the backslash and the quote.

    Returns:
        The text with backslashes.
    """
    last = len(text) - 1
    return "".join(
        "\\" + character
        if character in "\\'" or character in special or (character in WHITESPACE and index in {0, last})
        else character
        for index, character in enumerate(text)
    )
