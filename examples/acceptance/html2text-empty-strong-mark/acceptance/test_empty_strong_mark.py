"""An empty strong mark means: write bold text without marks."""

import html2text


def convert(html, **settings):
    converter = html2text.HTML2Text(bodywidth=0)
    for name, value in settings.items():
        setattr(converter, name, value)
    return converter.handle(html).strip()


def test_bold_text_after_plain_text():
    assert convert("<p>one<b>two</b></p>", strong_mark="") == "onetwo"


def test_bold_text_after_italic_text():
    assert convert("<p><i>one</i><strong>two</strong></p>", strong_mark="", emphasis_mark="/") == "/one/two"


def test_bold_text_alone():
    assert convert("<p><b>two</b></p>", strong_mark="") == "two"


def test_usual_marks():
    assert convert("<p>one <b>two</b></p>") == "one **two**"


def test_own_mark():
    assert convert("<p>one <b>two</b></p>", strong_mark="__") == "one __two__"
