"""value_chain() hides no error of the iterables that it reads."""

import pytest
from more_itertools import value_chain


def failing():
    yield 1
    raise TypeError("inside the generator")


def test_an_error_inside_a_generator_is_raised():
    with pytest.raises(TypeError, match="inside the generator"):
        list(value_chain(0, failing(), 2))


def test_the_items_before_the_error_are_there():
    items = value_chain(0, failing())
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(TypeError):
        next(items)


def test_single_values_and_iterables():
    assert list(value_chain(1, [2, 3], (), None, "word", b"raw")) == [1, 2, 3, None, "word", b"raw"]


def test_an_iterator_is_read_lazily():
    numbers = iter([1, 2, 3])
    assert next(value_chain(numbers)) == 1
    assert next(numbers) == 2
