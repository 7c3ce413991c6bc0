import pytest

from rota.slots.keeper_messages import Ended, Frames, Message, Outputs, Ready, Run, Stop, frame

ALL: list[Message] = [
    Run(("a", "b"), {"X": "y"}, "/tmp"), Stop(now=True), Ready(7), Outputs(b"a", b""), Ended(9, 5), Ended(None, 0, "no"),
    Ended(0, 0, None, b"\x00out", b"err\n"),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_messages_come_out_as_they_went_in_however_they_are_cut(size: int) -> None:
    data = b"".join(frame(message) for message in ALL)
    frames = Frames()
    found = [message for at in range(0, len(data), size) for message in frames.feed(data[at : at + size])]
    assert found == ALL
