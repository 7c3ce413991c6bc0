"""Names of organisations and devices, and pairing codes as people type them."""

import pytest

from rota.errors import PairingError
from rota.runners.pairing import NAME_MAX, Code, check_name, read_code


@pytest.mark.parametrize("text", ["", " ", "a\0b", "a\nb", "x" * (NAME_MAX + 1), "\ud800"])
def test_a_name_that_nobody_can_have_meant_is_refused(text: str) -> None:
    with pytest.raises(PairingError, match="is no organisation: give 1 to 200 printable characters") as caught:
        check_name("organisation", text)
    assert caught.value.code == "bad_name"


@pytest.mark.parametrize("text", ["a", "org 7", "Ünïcode-日本", "x" * NAME_MAX])
def test_other_names_are_fine(text: str) -> None:
    check_name("organisation", text)


@pytest.mark.parametrize("typed", ["ABCD-EFGH-JKMN", "abcd efgh jkmn", " abcdefghjkmn\n", "ABCD\N{EN DASH}EFGH-JKMN"])
def test_a_code_is_read_however_it_is_typed(typed: str) -> None:
    assert read_code(typed) == Code("ABCD", "EFGHJKMN")


NO_CODES = ["", "ABCD", "ABCD-EFGH-JKM0", "ABCD-EFGH-JKMNP", "ABCD-EFGH-JKM\N{FULLWIDTH LATIN CAPITAL LETTER N}"]


@pytest.mark.parametrize("typed", NO_CODES)
def test_what_is_no_code_says_how_one_looks(typed: str) -> None:
    with pytest.raises(PairingError, match="it looks like ABCD-EFGH-JKMN"):
        read_code(typed)
