"""addlist() keeps every value of an iterator, in both copies of the class that the package has.

The second copy is the one that urlutils uses when its file is taken along alone, so it is loaded like that here.
"""

import importlib.util

from boltons import dictutils, urlutils


def load_alone(path):
    spec = importlib.util.spec_from_file_location("urlutils_alone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


urlutils_alone = load_alone(urlutils.__file__)


def test_dictutils_keeps_the_values_of_a_generator():
    omd = dictutils.OrderedMultiDict([("n", 0)])
    omd.addlist("n", (n for n in (1, 2, 3)))
    assert omd.getlist("n") == [0, 1, 2, 3]
    assert omd.items(multi=True) == [("n", 0), ("n", 1), ("n", 2), ("n", 3)]


def test_urlutils_alone_keeps_the_values_of_a_generator():
    url = urlutils_alone.URL("http://example.test/")
    url.query_params.addlist("tag", iter(["red", "blue"]))
    assert url.query_params.getlist("tag") == ["red", "blue"]
    assert url.to_text() == "http://example.test/?tag=red&tag=blue"


def test_dictutils_adds_no_key_for_an_exhausted_iterator():
    omd = dictutils.OrderedMultiDict()
    omd.addlist("n", iter(()))
    assert "n" not in omd


def test_urlutils_alone_adds_no_key_for_an_exhausted_iterator():
    params = urlutils_alone.QueryParamDict()
    params.addlist("n", iter(()))
    assert "n" not in params


def test_lists_work_as_before():
    for kind in (dictutils.OrderedMultiDict, urlutils.QueryParamDict, urlutils_alone.QueryParamDict):
        omd = kind()
        omd.addlist("n", [1, 2])
        omd.addlist("n", [])
        assert omd.getlist("n") == [1, 2]
