"""ffmpeg's text tokens: how quotes and backslashes come off, and how a text is written so that they come off again.

`take` is libavutil's av_get_token. A graph goes through it twice: the graph takes a filter's arguments, and the filter
takes its options. Some options (lists of codec parameters) go through it a third time.
"""

import functools
import re
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
    text, ordinary = cursor.text, _ordinary(terminators)
    out: list[str] = []
    # What was quoted or escaped keeps its blanks: `kept` pieces are not trimmed.
    kept = 0
    while cursor.next and cursor.next not in terminators:
        run = ordinary.match(text, cursor.at)
        if run:
            out.append(run[0])
            cursor.at = run.end()
        elif cursor.next == "'":
            end = text.find("'", cursor.at + 1)
            out.append(text[cursor.at + 1 : len(text) if end < 0 else end])
            cursor.at = len(text) if end < 0 else end + 1
            kept = len(out) if end >= 0 else kept
        else:
            # A backslash, which is itself where nothing follows it.
            escaped = text[cursor.at + 1 : cursor.at + 2]
            out.append(escaped or "\\")
            cursor.at += 1 + len(escaped)
            kept = len(out) if escaped else kept
    return "".join(out[:kept]) + "".join(out[kept:]).rstrip(WHITESPACE)


@functools.cache
def _ordinary(terminators: str) -> re.Pattern[str]:
    return re.compile("[^'\\\\" + re.escape(terminators) + "]+")


def escape(text: str, special: str) -> str:
    """Write a text so that `take` with these terminators gives it back.

    Args:
        text: The text.
        special: Characters to escape beside the backslash and the quote.

    Returns:
        The text with backslashes.
    """
    body = re.sub("[" + re.escape("\\'" + special) + "]", r"\\\g<0>", text)
    if text[-1:] and text[-1] in WHITESPACE and text[-1] not in special:
        body = f"{body[:-1]}\\{body[-1]}"
    if text[:1] and text[0] in WHITESPACE and text[0] not in special and len(text) > 1:
        body = "\\" + body
    return body
