"""Curves and heatmaps as text, against pictures made by hand."""

import math

from textual.content import Content

from molt_tui.tui.widgets.chart import ChartLook, chart, logarithmic, lost_points, smoothed, value_at
from molt_tui.tui.widgets.routing import heatmap, shade

NAN, INF = math.nan, math.inf


def plain(lines) -> list[str]:
    return [line.plain if isinstance(line, Content) else line for line in lines]


def test_smoothing_is_the_mean_of_what_came_before_and_keeps_gaps():
    points = [(1, 2.0), (2, 4.0), (3, NAN), (4, 6.0), (5, 8.0)]
    assert smoothed(points, 1) == points
    found = smoothed(points, 3)
    assert [y for x, y in found if x != 3] == [2.0, 3.0, 4.0, 6.0]
    assert math.isnan(found[2][1])
    assert smoothed([(1, 1e308), (2, 1e308)], 5)[1][1] == 1e308


def test_the_logarithm_leaves_gaps_where_there_is_none():
    assert [y for _, y in logarithmic([(0, 100.0), (1, 0.01)])] == [2.0, -2.0]
    assert all(math.isnan(y) for _, y in logarithmic([(0, 0.0), (1, -3.0), (2, INF), (3, NAN)]))


def test_the_value_under_a_cursor_is_that_of_the_last_point_up_to_it():
    points = [(0, 1.0), (10, 2.0), (20, 3.0)]
    assert [value_at(points, step) for step in (-1, 0, 9, 10, 99)] == [None, 1.0, 1.0, 2.0, 3.0]


def test_what_cannot_be_drawn_is_named_with_its_step():
    assert lost_points([(1, 1.0)]) == ""
    assert lost_points([(211, 1.0), (212, NAN), (213, 1.0)]) == "  NaN at step 212"
    assert lost_points([(59, 1.0), (60, NAN), (61, NAN)]) == "  NaN since step 60"
    assert lost_points([(1, INF), (2, 1.0), (3, -INF), (4, 2.0)]) == "  inf ×2, last at step 3"


def test_the_cursor_stands_in_its_column_and_its_step_below():
    points = [(i, float(i)) for i in range(101)]
    lines = plain(chart([points], 48, 8, ChartLook(mark=50)))
    assert lines[1][28] == "│" and lines[0].startswith("    100▏") and lines[6].startswith("      0▏")
    assert "50" in lines[7][26:30]
    assert "step 0" in lines[7] and lines[7].endswith("100")
    crowded = plain(chart([points], 48, 8, ChartLook(mark=99)))[7]
    assert crowded.rstrip().endswith("99") and "100" not in crowded


def test_a_logarithmic_axis_is_labelled_with_values():
    lines = plain(chart([[(0, 0.001), (1, 1000.0)]], 40, 3, ChartLook(log=True)))
    assert lines[0].startswith("   1000▏") and lines[2].startswith(" 1.0e-3▏")
    assert plain(chart([[(0, 0.0), (1, -1.0)]], 40, 3, ChartLook(log=True))) == ["no value above 0 to draw (L: linear)"]


def test_shades_have_fixed_limits_and_missing_is_not_zero():
    assert [shade(v)[0] for v in (None, 0.0, 0.001, 0.01, 0.05, 0.2, 1.0, NAN)] == ["╌", " ", "░", "▒", "▓", "█", "█", "×"]


def test_a_heatmap_has_one_line_a_layer_and_one_column_a_step():
    layers = [(1, (0.0, 0.5)), (2, None), (3, (0.02, 0.001))]
    assert plain(heatmap(layers, 20, 2)) == ["    0  ╌▒", "    1 █╌░"]
    assert plain(heatmap(layers, 8, 2)) == ["    0 ╌▒", "    1 ╌░"]
    assert plain(heatmap(layers, 20, 1)) == ["  0-1 █╌▒"]
    assert plain(heatmap(layers, 20, 9))[:3] == ["    0  ╌▒", "       ╌▒", "       ╌▒"]
    assert heatmap([(1, None)], 20, 5) == []
