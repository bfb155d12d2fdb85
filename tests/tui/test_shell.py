"""What a person sets: themes, ASCII mode, other keys, read-only; and what the app itself costs."""

import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color

from molt_tui.bands import Spread
from molt_tui.errors import Refused
from molt_tui.tui import preferences
from molt_tui.tui.app import MoltApp
from molt_tui.tui.cost import Reading, in_words
from molt_tui.tui.keymap import all_keys, check_clashes
from molt_tui.tui.plain import AsciiOnly, plain, wants_ascii
from molt_tui.tui.preferences import Preferences, with_theme
from molt_tui.tui.read_only import changes
from molt_tui.tui.run_table import mean_and_sd
from tests.tui.conftest import Driver
from tests.tui.fake_source import FakeSource


@asynccontextmanager
async def driven(chosen: Preferences, keys=(), **options):
    app = MoltApp(FakeSource(), chosen, interval_s=3600.0, **options)
    async with app.run_test(size=(80, 24)) as pilot:
        driver = Driver(app, pilot, app.source)
        await driver.settle()
        await driver.press(*keys)
        yield driver


def test_defaults_without_a_file(tmp_path):
    assert preferences.load(tmp_path / "tui.toml") == Preferences()


def test_a_whole_file(tmp_path):
    path = tmp_path / "tui.toml"
    path.write_text('theme = "mono"\nascii = true\nread_only = true\nrefresh_s = 5\n[keys]\n"runs.sort" = "o,O"\n')
    assert preferences.load(path) == Preferences("mono", True, True, 5, {"runs.sort": "o,O"})
    assert preferences.load(path).with_options(theme=None, read_only=False).read_only is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('tehme = "dark"', "unknown setting 'tehme', did you mean 'theme'"),
        ('theme = "drak"', "theme 'drak' does not exist, did you mean 'dark'"),
        ("ascii = 1", "ascii must be true or false"),
        ("refresh_s = 0.01", "refresh_s must be a number of seconds from 0.5 to 60"),
        ("refresh_s = true", "refresh_s must be a number"),
        ('keys = "q"', "[keys] maps binding ids to keys"),
        ("[keys]\na = ''", "[keys] maps binding ids to keys"),
        ("[keys]\na = ','", "[keys] maps binding ids to keys"),
        ("theme = ", "is not valid TOML"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, text, words):
    path = tmp_path / "tui.toml"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        preferences.load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_binding_is_refused():
    known = {key.id: key.keys for key in all_keys()}
    preferences.check_keys({"runs.sort": "o"}, known)
    with pytest.raises(Refused, match=r"'runs.srot', did you mean 'runs.sort'"):
        preferences.check_keys({"runs.srot": "o"}, known)


@pytest.mark.parametrize(("key", "meant"), [("esc", "escape"), ("a,page down", "pagedown"), ("qq", None)])
def test_a_key_that_nobody_can_press_is_refused(key, meant):
    known = {key.id: key.keys for key in all_keys()}
    preferences.check_keys(dict.fromkeys(known, "escape, ctrl+s,],+,é,question_mark,f5,slash,minus,at,underscore"), known)
    with pytest.raises(Refused, match=f"app.quit: there is no key .*{meant or 'qq'}'"):
        preferences.check_keys({"app.quit": key}, known)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"run.log": "L"}, "run.log: on the screen Run 'L' is the key of curve.log; choose another, or give curve.log one"),
        ({"runs.sort": "o, ?"}, "runs.sort: on the screen Runs '?' is the key of app.help;"),
        ({"result.export": "ctrl+r"}, "result.export: on the screen Query 'ctrl+r' is the key of query.run;"),
        ({"confirm.yes": "n"}, "confirm.yes: on the screen Confirm 'n' is the key of confirm.no;"),
        ({"run.log": "o", "run.metric": "o"}, "on the screen Run 'o' is the key of run."),
    ],
)
def test_a_key_of_two_bindings_of_one_screen_is_refused(keys, words):
    with pytest.raises(Refused) as caught:
        check_clashes(keys)
    assert f"tui.toml: {words}" in str(caught.value) or words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_that_act_on_different_screens_or_were_exchanged_are_no_clash():
    check_clashes({key.id: ",".join(key.keys.split()) for key in all_keys() if key.id == "runs.sort"})
    check_clashes({"run.log": "L", "curve.log": "l"})
    check_clashes({"runs.sort": "b", "confirm.yes": "x", "result.edit": "i,tab"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'theme = "light"\n'),
        ('ascii = true\ntheme = "dark" # mine\n[keys]\n', 'ascii = true\ntheme = "light"\n[keys]\n'),
        ('[keys]\ntheme = "x"\n', 'theme = "light"\n[keys]\ntheme = "x"\n'),
    ],
)
def test_a_chosen_theme_is_kept_and_nothing_else_changes(before, after):
    assert with_theme(before, "light") == after


def test_every_binding_has_an_id_and_words():
    keys = all_keys()
    assert {"app.quit", "app.help", "runs.sort", "run.log"} <= {key.id for key in keys}
    assert all(key.keys and key.what for key in keys)


async def test_a_remapped_key_acts_and_the_old_one_does_not():
    async with driven(Preferences(keys={"runs.sort": "o"}), ["o"]) as driver:
        assert driver.app.screen.order == "state"
        await driver.press("s")
        assert driver.app.screen.order == "state"


async def test_a_key_may_be_written_as_its_sign_and_after_a_space():
    async with driven(Preferences(keys={"runs.sort": "o, ]"}), ["right_square_bracket"]) as driver:
        assert driver.app.screen.order == "state"


async def test_the_file_of_the_readme_does_what_it_says(tmp_path):
    (example,) = re.findall(r"```toml\n(theme = .*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)
    (tmp_path / "tui.toml").write_text(example)
    (key,) = preferences.load(tmp_path / "tui.toml").keys.values()
    async with driven(preferences.load(tmp_path / "tui.toml"), ["enter", key]) as driver:
        assert "━Log" in driver.text(), "no other binding of the dashboard takes the key first"


@pytest.mark.parametrize(("name", "theme"), [("mono", "molt-mono"), ("terminal", "ansi-dark"), ("light", "molt-light")])
async def test_themes_by_their_short_names(name, theme):
    async with driven(Preferences(theme=name)) as driver:
        assert driver.app.theme == theme


async def test_a_theme_chosen_on_the_screen_is_told():
    kept = []
    async with driven(Preferences(), keep_theme=kept.append) as driver:
        driver.app.theme = "molt-light"
        await driver.settle()
    assert kept == ["molt-light"]


async def test_mono_draws_no_hue():
    async with driven(Preferences(theme="mono")) as driver:
        for strip in driver.app.screen._compositor.render_strips():
            for segment in strip:
                for color in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    assert color is None or len(set(color.get_truecolor())) == 1, (segment.text, color)


async def test_ascii_mode_draws_ascii_only():
    async with driven(Preferences(ascii=True)) as driver:
        for keys in (), ("enter",), ("question_mark",):
            await driver.press(*keys)
            assert driver.text().strip().isascii()


async def test_ascii_mode_names_the_keys():
    async with driven(Preferences(ascii=True)) as driver:
        assert driver.text().splitlines()[-1].startswith("RET Open") and driver.text().splitlines()[-1].endswith("q Quit")
        await driver.press("enter")
        assert "train 70 %" in driver.text() and "/ sync 8 %" in driver.text() and "4.1 %-> 0 % after replay" in driver.text()
        await driver.press("escape", "s")
        assert "State^" in driver.text(), "sorted upwards"


@given(st.text())
def test_plain_keeps_the_width(text):
    assert plain(text).isascii()
    assert len(plain(text)) == sum(1 if c.isascii() else cell_len(c) for c in text)
    assert AsciiOnly().apply([Segment(text)], Color(0, 0, 0))[0].text == plain(text)


async def test_ascii_mode_reads_as_no_range():
    async with driven(Preferences(ascii=True), ["question_mark"]) as driver:
        assert "mean +-" in " ".join(driver.text().replace("|", " ").split())
    async with driven(Preferences(ascii=True), ["colon"]) as driver:
        assert "??" not in driver.text()
    assert plain("0.5 ± 0.1") == "0.5 +-0.1"
    assert mean_and_sd(Spread(0.5123, 0.0114, 3), ascii=True) == "0.51+-0.011"


def test_plain_says_the_same():
    assert plain("▶ running ✖ ─│┌ … ⣿⠁") == "> running x -|+ ~ @."


def test_when_ascii_is_needed():
    assert wants_ascii({"TERM": "linux"})
    assert wants_ascii({"LANG": "de_DE.ISO-8859-1"})
    assert not wants_ascii({"LANG": "C.UTF-8"})
    assert not wants_ascii({"LANG": "en_US.utf8", "TERM": "xterm"})
    assert not wants_ascii({})
    assert wants_ascii({}, "ascii") and not wants_ascii({}, "UTF8")


def test_read_only_refuses_in_one_line():
    class Thing:
        def __init__(self, read_only):
            self.read_only = read_only

        @changes
        def act(self, x):
            return x

    assert Thing(False).act(3) == 3
    with pytest.raises(Refused, match="read-only: leave and start molt-tui without --read-only"):
        Thing(True).act(3)


@pytest.mark.parametrize("read_only", [True, False])
async def test_read_only_is_seen_on_the_first_screen(read_only):
    async with driven(Preferences(read_only=read_only)) as driver:
        assert ("read-only" in driver.text().splitlines()[0]) == read_only


def test_own_cost_in_words():
    start, now = Reading(0.0, 1.0, 0, {}), Reading(60.0, 1.6, 120_000, {"squeue": 4, "git": 9})
    words = in_words(start, now, 3.0)
    assert "over 60 s: 1.0 % of a core; 2.0 kB/s to the terminal" in words
    assert "scheduler calls: squeue 4 (4.0 a minute); a look every 3 s" in words
