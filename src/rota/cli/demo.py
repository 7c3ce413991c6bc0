"""`rota demo`: the main job on real input."""


def demo() -> None:
    """Run the demo."""
