"""An IndexedSet takes any number of iterables at once and keeps the order of first appearance."""

from boltons.setutils import IndexedSet


def test_two_lists_are_merged_element_by_element():
    letters = IndexedSet("ab")
    letters.update(["c", "a"], ["d"])
    assert list(letters) == ["a", "b", "c", "d"]


def test_strings_are_iterables_too():
    letters = IndexedSet()
    letters.update("xy", "yz")
    assert list(letters) == ["x", "y", "z"]


def test_generators_are_read_in_order():
    numbers = IndexedSet([0])
    numbers.update((n for n in (1, 2)), (n for n in (2, 3)), range(3, 5))
    assert list(numbers) == [0, 1, 2, 3, 4]


def test_one_iterable_still_works():
    letters = IndexedSet("ab")
    letters.update(["b", "c"])
    assert list(letters) == ["a", "b", "c"]


def test_no_argument_changes_nothing():
    letters = IndexedSet("ab")
    letters.update()
    assert list(letters) == ["a", "b"]
