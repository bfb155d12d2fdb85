"""Mean, spread and bands of groups against hand-computed values and for any float."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt_tui.bands import BandPoint, Spread, band_by_step, band_on_grid, interpolate, placed, running_total, spread

NAN, INF = math.nan, math.inf


def test_spread_by_hand():
    assert spread([1.0, 2.0, 4.0]) == Spread(pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3)
    assert spread([5.0]) == Spread(5.0, None, 1) and spread([]) is None
    assert spread([2.0, NAN, 4.0, -INF]) == Spread(3.0, pytest.approx(math.sqrt(2)), 2, 2)
    assert math.isnan(spread([NAN]).mean) and spread([NAN, INF]).lost == 2


@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_spread_is_that_of_the_statistics_module(values):
    found = spread(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert found.sd == pytest.approx(statistics.stdev(values), abs=1e-6)


@given(st.lists(st.floats()))
def test_any_floats_have_a_spread_without_overflow(values):
    found = spread(values)
    if found is not None and found.n:
        assert math.isfinite(found.mean) and (found.sd is None or math.isfinite(found.sd))


def test_a_band_by_step_counts_the_runs_that_have_the_step():
    band = band_by_step([[(1, 1.0), (2, 2.0)], [(1, 3.0), (3, 9.0)], [(2, NAN)]])
    assert band[0] == BandPoint(1, 2.0, pytest.approx(math.sqrt(2)), 2)
    assert band[1] == BandPoint(2, 2.0, None, 1)
    assert band[2] == BandPoint(3, 9.0, None, 1)


def test_a_band_on_a_grid_interpolates_within_each_run_only():
    band = band_on_grid([[(0.0, 0.0), (10.0, 10.0)], [(5.0, 1.0), (10.0, 1.0)]], 3)
    assert [(p.x, p.mean, p.n) for p in band] == [(0.0, 0.0, 1), (5.0, 3.0, 2), (10.0, 5.5, 2)]
    assert band_on_grid([[(1.0, NAN)]], 5) == [] and [p.x for p in band_on_grid([[(3.0, 1.0)]], 5)] == [3.0]


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats()), max_size=20), st.integers(1, 30))
def test_any_curve_makes_a_band(points, count):
    curve = sorted(points, key=lambda p: p[0])
    for band in (band_by_step([curve, curve]), band_on_grid([curve, curve], count)):
        assert all(p.n == 0 or math.isfinite(p.mean) or abs(p.mean) > 0 for p in band)


def test_interpolation_and_axes():
    assert interpolate([(0.0, 0.0), (2.0, 4.0)], [-1.0, 0.0, 1.0, 2.0, 3.0]) == [None, 0.0, 2.0, 4.0, None]
    assert interpolate([(1.0, 7.0), (1.0, 8.0)], [1.0]) == [8.0]
    assert running_total([(1, 2.0), (2, NAN), (3, 3.0)]) == {1: 2.0, 2: 2.0, 3: 5.0}
    assert placed([(1, 0.5), (9, 0.7)], {1: 2.0}) == [(2.0, 0.5)]
