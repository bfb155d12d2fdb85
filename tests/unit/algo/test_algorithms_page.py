from tests.make_algorithms import PAGE, page


def test_the_page_is_the_code():
    assert PAGE.read_text() == page(), "run `python -m tests.make_algorithms`"
