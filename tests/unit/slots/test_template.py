import pytest

from rota.errors import ArgumentsError
from rota.slots.template import ARGUMENT_BYTES_MAX, Template, argument_type, parse_word

SCRATCH = "/scratch/1"


def template(*words: str, **types: str) -> Template:
    return Template(tuple(parse_word(word) for word in words), {n: argument_type(t) for n, t in types.items()})


def rest(declared: str = "argument") -> Template:
    return Template((parse_word("ffmpeg"), parse_word("{*}")), {"*": argument_type(declared)})


def test_named_arguments_fill_their_holes() -> None:
    scale = template("ffmpeg", "-vf", "scale=-2:{height}", "{scratch}/out", height="int 144..2160")
    filled = scale.fill({"height": 720}, scratch=SCRATCH)
    assert filled.argv == ("ffmpeg", "-vf", "scale=-2:720", "/scratch/1/out")
    assert filled.paths == ()


@pytest.mark.parametrize(
    "given",
    [
        ["--height", "720", "fast"],
        ["--height=720", "fast"],
        ["fast", "--height", 720],
        ["720", "fast"],
        [720, "--speed=fast"],
    ],
)
def test_a_list_is_read_as_options_and_then_in_order(given: list[str | int]) -> None:
    both = template("x", "{height}", "{speed}", height="int", speed="choice fast|slow")
    assert both.fill(given, scratch=SCRATCH).argv == ("x", "720", "fast")


def test_an_option_may_be_written_with_dashes() -> None:
    assert template("x", "{frame_rate}", frame_rate="int").fill(["--frame-rate=5"], scratch="").argv == ("x", "5")


def test_a_default_stands_in_for_what_is_not_given() -> None:
    made = template("x", "{height}", height="int 1..9 = 5")
    assert made.fill({}, scratch=SCRATCH).argv == ("x", "5")
    assert made.fill(["7"], scratch=SCRATCH).argv == ("x", "7")


def test_braces_are_doubled() -> None:
    assert template("awk", "{{print $1}}").fill([], scratch=SCRATCH).argv == ("awk", "{print $1}")


def test_a_list_goes_on_as_it_is_where_the_service_says_so() -> None:
    assert rest().fill(["-i", "/etc/passwd", "-"], scratch=SCRATCH).argv == ("ffmpeg", "-i", "/etc/passwd", "-")


def test_each_of_a_list_fits_the_declared_type() -> None:
    with pytest.raises(ArgumentsError, match="argument 2 does not fit"):
        rest("word").fill(["ok", "-rf"], scratch=SCRATCH)


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        ("int 1..10", ["1", 10, "+3"], ["0", 11, "1.5", "x", "", "1e1", "１"]),
        ("int", ["-5", 0], ["--5", "1_000"]),
        ("number ..2.5", ["2.5", -3, "1."], ["2.6", "nan", "inf", "1e9", "."]),
        ("word", ["a.jpg", "x-1", "_", "9"], ["-x", ".x", "a b", "a/b", "", "ä", "a\n"]),
        ("choice fast|slow", ["fast"], ["Fast", "fas", "fast|slow"]),
        ("text", ["a b", "ü", ""], ["a/b", "a\nb", "a\0b", "a\x85b", "x" * 1001]),
        ("text ..3", ["abc"], ["abcd"]),
        ("path /srv/m", ["a/b.mp4", "x"], ["/etc/passwd", "../x", "a/../../x", "", "a\nb"]),
        ("argument", ["-rf", "/", "a b", True], ["a\0b", "x" * (ARGUMENT_BYTES_MAX + 1)]),
    ],
)
def test_types(declared: str, good: list[str | int], bad: list[str | int]) -> None:
    kind = argument_type(declared)
    for value in good:
        kind.text(value)
    for value in bad:
        with pytest.raises(ArgumentsError):
            kind.text(value)


def test_a_path_lies_in_its_folder_and_is_told() -> None:
    made = template("cat", "in={file}", file="path /srv/media")
    filled = made.fill({"file": "a/./b.mp4"}, scratch=SCRATCH)
    assert filled.argv == ("cat", "in=/srv/media/a/b.mp4")
    assert filled.paths == (("/srv/media/a/b.mp4", "/srv/media"),)


def test_no_text_is_an_option() -> None:
    made = template("grep", "{pattern}", "x={pattern}", pattern="text")
    with pytest.raises(ArgumentsError, match="begins with a dash"):
        made.fill(["--pattern=-f"], scratch=SCRATCH)
    ended = template("grep", "--", "{pattern}", pattern="text")
    assert ended.fill({"pattern": "-f"}, scratch=SCRATCH).argv == ("grep", "--", "-f")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"width": 1}, "no argument 'width'"),
        ({}, "'height' is missing"),
        ({"height": "tall"}, "'height' does not fit: give a whole number"),
        (["1", "2"], "2 arguments, more than the service takes"),
        (["--height"], "--height has no value"),
        (["1"] * 1001, "1,001 arguments"),
        ({"height": [1]}, "'height' does not fit: give text or a number"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: object, message: str) -> None:
    with pytest.raises(ArgumentsError, match=message):
        template("x", "{height}", height="int").fill(given, scratch=SCRATCH)  # type: ignore[arg-type]


def test_all_arguments_together_are_bounded() -> None:
    with pytest.raises(ArgumentsError, match="send what is long by stdin"):
        rest().fill(["x" * 30_000] * 4, scratch=SCRATCH)


@pytest.mark.parametrize(
    "declared", ["int 5..1", "int a..b", "choice", "path media", "word 5", "colour", "int 1..2 = 3", 5]
)
def test_a_declaration_that_says_nothing_is_refused(declared: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        argument_type(declared)


@pytest.mark.parametrize("word", ["{", "{a!r}", "{a:5}", "{}", "{a b}", "a\0", 5])
def test_a_word_that_cannot_be_read_is_refused(word: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_word(word)
