"""Which side waits for the other: windows and what keeps a finding, with hand-computed means."""

from hypothesis import given
from hypothesis import strategies as st

from molt_tui.bottleneck import FEWEST, KEEP, STEPS, Bottleneck, find_bottleneck
from molt_tui.facts import Facts
from molt_tui.verdict import headline

shares = st.lists(st.floats(0, 1), max_size=80)


def sides(trainer, engines):
    """What was found after each step."""
    found = [find_bottleneck(trainer[:end], engines[:end]) for end in range(FEWEST, len(trainer) + 1)]
    return [each.side for each in found if each is not None]


def test_nothing_is_said_of_the_first_steps():
    assert find_bottleneck([0.9] * (FEWEST - 1), [0.0] * (FEWEST - 1)) is None
    assert find_bottleneck([0.9] * FEWEST, [0.0] * FEWEST) == Bottleneck("generation-bound", 0.9, 0.0)


def test_the_means_are_those_of_the_last_steps():
    found = find_bottleneck([1.0] * 10 + [0.375, 0.0] * (STEPS // 2), [0.4] * 30)
    assert (found.side, found.trainer, round(found.engines, 9)) == ("trainer-bound", 0.1875, 0.4)


def test_a_side_that_waits_every_other_step_does_not_turn_with_them():
    trainer = [0.6, 0.0] * 40
    assert set(sides(trainer, [0.1] * 80)) == {"generation-bound"}


def test_what_was_found_stays_until_a_mean_is_clearly_beyond_the_border():
    slow = [0.5] * STEPS
    assert sides([0.23] * STEPS, slow)[-1] == "trainer-bound"
    assert sides([0.23] * STEPS + [0.27] * STEPS, slow * 2)[-1] == "trainer-bound"
    assert sides([0.23] * STEPS + [0.31] * STEPS, slow * 2)[-1] == "alternating"
    assert sides([0.31] * STEPS + [0.23] * STEPS, slow * 2)[-1] == "alternating"


def test_engines_that_say_nothing_do_not_wait():
    assert find_bottleneck([0.1] * 5, [None] * 5) == Bottleneck("balanced", 0.1, None)
    assert find_bottleneck([0.1] * 5, [None, 0.5, None, None, 0.3]).engines == 0.4


@given(shares, st.integers(0, 200))
def test_steady_shares_have_one_side_whatever_came_before(before, seed):
    """A window after the change at the latest, unless the new mean lies within KEEP of the border."""
    share = seed / 200
    if abs(share - 0.25) > KEEP:
        trainer = before + [share] * STEPS
        assert find_bottleneck(trainer, [0.0] * len(trainer)).side == ("generation-bound" if share > 0.25 else "balanced")


def test_a_machine_without_gpus_is_offered_neither_ranks_nor_engines():
    metrics = {"time/trainer_idle_frac": 0.1, "time/rollout_idle_frac": 0.6, "host/cpu/mean": 0.9}
    alone = headline(Facts("running", step=9, metrics=metrics))
    assert alone.rule == "trainer-bound" and "cores" in alone.action and "ranks" not in alone.action
    for more in ({"metrics": metrics | {"host/gpu_util/mean": 0.4}}, {"metrics": metrics, "config": {"actor.num_nodes": 2}}):
        assert "ranks" in headline(Facts("running", step=9, **more)).action
