"""What is deleted from an array by a slice is deleted from the document too."""

import tomlkit


def after_deletion(chosen):
    document = tomlkit.parse("a = [1, 2, 3, 4, 5]\n")
    del document["a"][chosen]
    plain = [1, 2, 3, 4, 5]
    del plain[chosen]
    assert document["a"].unwrap() == plain
    return tomlkit.parse(tomlkit.dumps(document))["a"].unwrap() == plain


def test_the_last_two():
    assert after_deletion(slice(-2, None))


def test_all_but_the_last():
    assert after_deletion(slice(None, -1))


def test_backwards():
    assert after_deletion(slice(3, 0, -2))


def test_an_empty_slice():
    assert after_deletion(slice(2, 0))


def test_a_slice_from_the_start():
    assert after_deletion(slice(0, 2))


def test_a_stop_behind_the_end():
    assert after_deletion(slice(3, 99))


def test_one_element():
    assert after_deletion(1)
    assert after_deletion(-1)
