import pytest

from rota.slots.keeper_messages import Ended, Frames, Message, Outputs, Ready, Run, Stop, frame

ALL: list[Message] = [
    Run(("a", "b"), {"X": "y"}, "/tmp", 3), Stop(now=True), Ready(7), Outputs(b"a", b""), Ended(9, 5),
    Ended(None, 0, "no"), Ended(0, 0, None, b"\x00out", b"err\n"),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_messages_come_out_as_they_went_in_however_they_are_cut(size: int) -> None:
    data = b"".join(frame(message) for message in ALL)
    frames = Frames()
    found = [message for at in range(0, len(data), size) for message in frames.feed(data[at : at + size])]
    assert found == ALL


def test_one_whole_message_comes_out_at_once_also_after_one_that_was_cut() -> None:
    frames = Frames()
    for message in ALL:
        assert frames.feed(frame(message)) == [message]
    assert frames.feed(frame(ALL[0])[:-1]) == []
    assert frames.feed(frame(ALL[0])[-1:] + frame(ALL[1])) == [ALL[0], ALL[1]]
    assert frames.feed(frame(ALL[2])) == [ALL[2]]
