"""Errors as one line, with the type named once."""

from engine.errors import name_and_message, one_line


class DoesNotFit(ValueError):
    pass


class Remote(RuntimeError):
    def __init__(self, cause):
        super().__init__("traceback\nof the\nother side")
        self.cause = cause


def test_the_type_is_named_once_and_the_wrapped_error_is_meant():
    error = Remote(DoesNotFit("a sequence has 900 tokens\n  ^^^^\nraise train.max_tokens_per_gpu"))
    assert name_and_message(error) == ("DoesNotFit", "raise train.max_tokens_per_gpu")
    assert one_line(error) == "DoesNotFit: raise train.max_tokens_per_gpu"
    assert one_line(KeyError()) == "KeyError: no message"
