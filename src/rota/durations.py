"""Durations as people say them. Pure; what a program reads is the number."""


def duration(seconds: float) -> str:
    """3 s, 4 min, 2 h, 5 d."""
    size = abs(seconds)
    if size < 120:
        return f"{size:.0f} s"
    if size < 7200:
        return f"{size / 60:.0f} min"
    if size < 172_800:
        return f"{size / 3600:.0f} h"
    return f"{size / 86_400:.0f} d"


def measured(seconds: float) -> str:
    """A time that something took: 0.3 s, and from 10 s on as `duration`."""
    return f"{seconds:.1f} s" if abs(seconds) < 9.95 else duration(seconds)


def span(low_s: float, high_s: float) -> str:
    """An estimate, from and to: 3 to 5 min, 100 s to 3 min; about 61 s where both read alike."""
    low, high = duration(low_s), duration(high_s)
    number, _, unit = low.partition(" ")
    if low == high:
        return f"about {low}"
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"
