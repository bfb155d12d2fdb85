"""The page about verdicts and keys is what the code says."""

import re

from engine import flags
from molt_tui.facts import Facts
from molt_tui.verdict import RULES
from tests.make_what_to_press import PAGE, bindings, page


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run `python -m tests.make_what_to_press`"


def test_every_rule_has_words_and_names_settings_that_exist():
    known = set(flags.flag_table())
    for rule in RULES:
        action = rule.action if isinstance(rule.action, str) else rule.action(Facts("failed"))
        assert rule.about and rule.healthy, rule.name
        assert not {word for word in re.findall(r"\b[a-z]+(?:\.[a-z_]+)+", action)} - known, rule.name
        assert rule.level != "critical" or action, rule.name
        assert len(action) <= 76, f"{rule.name}: it does not fit into 80 columns"


def test_the_keys_named_in_actions_exist():
    keys = {key for _, binding in bindings() for key in binding.key.split(",")}
    for rule in RULES:
        action = rule.action if isinstance(rule.action, str) else rule.action(Facts("failed"))
        assert set(re.findall(r"\bpress ([a-z])\b", action)) <= keys, rule.name
