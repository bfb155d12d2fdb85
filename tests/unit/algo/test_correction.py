import math

import pytest
import slow_algo
import torch
from batches import EXTREME_LOGPROBS, Batch, assert_close, batches, double, quick
from hypothesis import given
from hypothesis import strategies as st

from engine.algo.correction import CorrectionRule, correction_metrics, finish_correction, importance_weights
from engine.algo.names import PRESETS
from engine.algo.sums import add_sums

INF = math.inf
ALLOWED = [
    ("token", "mask", "ratio"),
    ("token", "clip", "ratio"),
    ("token", "trunc", "ratio"),
    ("token", "mask", "binary_kl"),
    ("token", "mask", "tv"),
    ("seq", "mask", "ratio"),
    ("seq", "mask", "binary_kl"),
    ("seq", "mask", "tv"),
    ("geo", "mask", "ratio"),
]
BANDS = {"ratio": (0.83, 1.21), "binary_kl": (-INF, 0.113), "tv": (-INF, 0.157)}
RULES = [CorrectionRule()] + [CorrectionRule(*names, *BANDS[names[2]]) for names in ALLOWED]

# Ratios 2, 1/4, 1 (product 1/2, geometric mean 0.7937) and a segment with ratio 8; the 0.0 positions are feedback.
OLD = [[math.log(0.5), math.log(0.1), 0.0, math.log(0.3)], [0.0, math.log(0.8), 0.0, 0.0]]
MU = [[math.log(0.25), math.log(0.4), 0.0, math.log(0.3)], [0.0, math.log(0.1), 0.0, 0.0]]
MASK = torch.tensor([[1, 1, 0, 1], [0, 1, 0, 0]]).bool()


def by_hand(level, mode, gating, low, high):
    return importance_weights(double(OLD), double(MU), MASK, CorrectionRule(level, mode, gating, low, high))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (("off", "mask", "ratio", 0.5, 5.0), [1, 1, 1, 1]),
        (("token", "mask", "ratio", 0.5, 5.0), [2, 0, 1, 0]),
        (("token", "mask", "ratio", -INF, 5.0), [2, 0.25, 1, 0]),
        (("token", "clip", "ratio", 0.5, 5.0), [2, 0.5, 1, 5]),
        (("token", "trunc", "ratio", 0.5, 1.5), [1.5, 0.25, 1, 1.5]),
        # Products 1/2 and 8; a kept segment still carries its token ratios.
        (("seq", "mask", "ratio", 0.4, 5.0), [2, 0.25, 1, 0]),
        (("seq", "mask", "ratio", 0.6, 9.0), [0, 0, 0, 8]),
        # Geometric means 0.7937 and 8.
        (("geo", "mask", "ratio", 0.79, 1.21), [2, 0.25, 1, 0]),
        (("geo", "mask", "ratio", 0.80, 9.0), [0, 0, 0, 8]),
        # |mu - old|: 0.25, 0.3, 0, 0.7; segment means 0.18333 and 0.7.
        (("token", "mask", "tv", -INF, 0.26), [2, 0, 1, 0]),
        (("seq", "mask", "tv", -INF, 0.19), [2, 0.25, 1, 0]),
        (("seq", "mask", "tv", -INF, 0.18), [0, 0, 0, 0]),
        # 1/4 ln 1/2 + 3/4 ln 3/2 = 0.1308; 0.4 ln 4 + 0.6 ln 2/3 = 0.3112; 0; 0.1 ln 1/8 + 0.9 ln 9/2 = 1.1458.
        (("token", "mask", "binary_kl", -INF, 0.131), [2, 0, 1, 0]),
        (("token", "mask", "binary_kl", -INF, 0.130), [0, 0, 1, 0]),
        # Mean of the first three: 0.14734.
        (("seq", "mask", "binary_kl", -INF, 0.148), [2, 0.25, 1, 0]),
        (("seq", "mask", "binary_kl", -INF, 0.147), [0, 0, 0, 0]),
    ],
)
def test_weights_by_hand(rule, expected):
    result = by_hand(*rule)
    assert_close(result.weights_ST[MASK], [float(weight) for weight in expected])
    assert not result.weights_ST[~MASK].any()
    assert torch.equal(result.masked_ST[MASK], torch.tensor([weight == 0 for weight in expected]))


def test_a_segment_product_is_clamped_like_a_token_ratio():
    # Logs -20 and -20: the sum is clamped to -30, exp(-30) = 9.4e-14, and the tokens keep exp(-20) each.
    logprobs = double([[-20.0, -20.0]])
    rule = CorrectionRule("seq", "mask", "ratio", 5e-14, 1.0)
    result = importance_weights(logprobs, torch.zeros_like(logprobs), torch.ones(1, 2).bool(), rule)
    assert_close(result.weights_ST, [[math.exp(-20)] * 2], 1e-12)
    assert not result.masked_ST.any()


@pytest.mark.parametrize("rule", RULES, ids=str)
@quick
@given(batch=batches())
def test_weights_equal_the_slow_ones(rule, batch):
    expected = slow_algo.weights(batch.old, batch.mu, batch.mask, rule.level, rule.mode, rule.gating, rule.low, rule.high)
    result = importance_weights(double(batch.old), double(batch.mu), torch.tensor(batch.mask), rule)
    assert_close(result.weights_ST, expected)


@pytest.mark.parametrize("level", ["token", "seq"])
@pytest.mark.parametrize("shift", [0.0, 1e-16, 1e-9])
def test_low_zero_keeps_perfect_agreement(level, shift):
    mu_ST = -torch.logspace(-9, 2, 400, dtype=torch.float64)[:, None]
    rule = CorrectionRule(level, "mask", "binary_kl", 0.0, 0.01)
    result = importance_weights(mu_ST - shift, mu_ST, torch.ones_like(mu_ST).bool(), rule)
    assert not result.masked_ST.any()


def test_metrics_by_hand():
    # Tokens w = 2, 1/4, 1, 8 in the band [0.5, 5]: one below, one above; kept 2 and 1: 3^2 / (2 * 5) = 0.9.
    # |A| w = 2, 1/4, 2, 8: kept 4 of 12.25.
    advantages_ST = double([[1.0, -1.0, 7.0, 2.0], [7.0, -1.0, 7.0, 7.0]])
    metrics = finish_correction(correction_metrics(by_hand("token", "mask", "ratio", 0.5, 5.0), advantages_ST, MASK))
    assert metrics == pytest.approx(
        {
            "is/ratio_mean": 11.25 / 4,
            "is/masked_frac": 0.5,
            "is/masked_low_frac": 0.25,
            "is/masked_high_frac": 0.25,
            "is/ess_frac": 0.9,
            "is/kept_grad_frac": 4 / 12.25,
        }
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (("off", "mask", "ratio", 0.5, 5.0), {"is/ratio_mean": 2.8125}),
        # Weights 2, 1/2, 1, 5: 8.5^2 / (4 * 30.25).
        (("token", "clip", "ratio", 0.5, 5.0), {"is/ratio_mean": 2.8125, "is/clipped_frac": 0.5, "is/ess_frac": 72.25 / 121}),
        # Weights 2, 1/4, 1, 5: 8.25^2 / (4 * 30.0625).
        (
            ("token", "trunc", "ratio", 0.5, 5.0),
            {"is/ratio_mean": 2.8125, "is/truncated_frac": 0.25, "is/ess_frac": 68.0625 / 120.25},
        ),
        # The second of two segments (one of four tokens, 8 of 11.25 gradient) goes; kept 3.25^2 / (3 * 5.0625).
        # No lower bound, so no low side to report.
        (
            ("seq", "mask", "ratio", -INF, 5.0),
            {
                "is/ratio_mean": 2.8125,
                "is/masked_frac": 0.25,
                "is/masked_high_frac": 0.25,
                "is/masked_seq_frac": 0.5,
                "is/ess_frac": 10.5625 / 15.1875,
                "is/kept_grad_frac": 3.25 / 11.25,
            },
        ),
    ],
)
def test_only_defined_metrics_are_reported(rule, expected):
    sums = correction_metrics(by_hand(*rule), torch.ones(2, 4), MASK)
    assert finish_correction(sums) == pytest.approx(expected)


def test_nothing_measured_is_absent():
    nothing = torch.zeros(2, 4).bool()
    for rule in RULES:
        result = importance_weights(double(OLD), double(MU), nothing, rule)
        assert finish_correction(correction_metrics(result, torch.ones(2, 4), nothing)) == {}


def test_all_masked_reports_the_share_and_no_effective_sample_size():
    metrics = finish_correction(correction_metrics(by_hand("token", "mask", "ratio", 20.0, 30.0), torch.ones(2, 4), MASK))
    assert metrics["is/masked_frac"] == 1.0
    assert metrics["is/kept_grad_frac"] == 0.0
    assert "is/ess_frac" not in metrics


def sums_of(batch: Batch, rows: slice, rule: CorrectionRule):
    mask_ST = torch.tensor(batch.mask)[rows]
    result = importance_weights(double(batch.old)[rows], double(batch.mu)[rows], mask_ST, rule)
    return correction_metrics(result, double(batch.advantages)[rows], mask_ST)


@quick
@given(batches(), st.sampled_from(RULES), st.integers(0, 5))
def test_metrics_do_not_depend_on_the_split(batch, rule, cut):
    whole = sums_of(batch, slice(None), rule)
    first, second = sums_of(batch, slice(0, cut), rule), sums_of(batch, slice(cut, None), rule)
    assert first.keys() == second.keys() == whole.keys()
    assert finish_correction(add_sums(first, second)) == pytest.approx(finish_correction(whole))


@quick
@given(batches(logprobs=EXTREME_LOGPROBS), st.sampled_from(RULES))
def test_finite_out(batch, rule):
    mask_ST = torch.tensor(batch.mask)
    result = importance_weights(torch.tensor(batch.old), torch.tensor(batch.mu), mask_ST, rule)
    assert result.weights_ST.isfinite().all()
    assert result.weights_ST.max() <= math.exp(30) * (1 + 1e-12)
    metrics = finish_correction(correction_metrics(result, torch.tensor(batch.advantages), mask_ST))
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(-1e-12 <= value <= 1 + 1e-12 for name, value in metrics.items() if name != "is/ratio_mean")


def test_padding_is_never_read():
    garbage = double([[9.0, math.nan, math.inf, -math.inf]] * 2)
    for rule in RULES:
        clean = importance_weights(double(OLD), double(MU), MASK, rule)
        dirty = importance_weights(torch.where(MASK, double(OLD), garbage), torch.where(MASK, double(MU), garbage), MASK, rule)
        assert torch.equal(clean.weights_ST, dirty.weights_ST)
        assert torch.equal(clean.masked_ST, dirty.masked_ST)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # Ratios 4, 1/4, 1 (product 1) and 8; band 1/2 to 5. tis cuts 8 down; icepop masks 1/4 and 8; mis the segment of 8.
        ("tis", {"is/truncated_frac": 0.25, "is/masked_frac": None, "is/masked_seq_frac": None}),
        ("icepop", {"is/truncated_frac": None, "is/masked_frac": 0.5, "is/masked_seq_frac": None}),
        ("mis", {"is/truncated_frac": None, "is/masked_frac": 0.25, "is/masked_seq_frac": 0.5}),
    ],
)
def test_presets_differ_on_the_same_stale_data(preset, expected):
    old = [[math.log(0.8), math.log(0.1), 0.0, math.log(0.3)], OLD[1]]
    mu = [[math.log(0.2), math.log(0.4), 0.0, math.log(0.3)], MU[1]]
    level, mode = PRESETS[preset]
    result = importance_weights(double(old), double(mu), MASK, CorrectionRule(level, mode, "ratio", 0.5, 5.0))
    metrics = finish_correction(correction_metrics(result, torch.ones(2, 4), MASK))
    assert {name: metrics.get(name) for name in expected} == expected
