"""Names and combination rules of the algorithms, free of torch so that configuration and forms can import them.

The rules are applied to every configuration (`validate.py`), launched or changed while live; the functions that compute trust it.
The modules that compute hold the registries; a test keeps both sides equal.
"""

# "own" is a function in a file of the user's: algo.advantage.estimator_path.
ESTIMATOR_NAMES = ("reinforce", "reinforce_baseline", "rloo", "grpo", "dr_grpo", "gae", "on_policy_distill", "own")
# Estimators that take rewards of single tokens, such as -beta * kl.
TOKEN_REWARD_ESTIMATORS = ("reinforce", "gae", "on_policy_distill", "own")
# Estimators whose baseline is a group statistic: they need several rollouts per prompt.
GROUP_ESTIMATORS = ("reinforce_baseline", "rloo", "grpo", "dr_grpo")
LOSS_MODES = ("ppo", "cispo", "gspo")
KL_ESTIMATORS = ("k1", "k2", "k3")
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "prompt-mean-token-mean")

LEVELS = ("off", "token", "seq", "geo")
MODES = ("mask", "clip", "trunc")
GATINGS = ("ratio", "binary_kl", "tv")
# (level, mode) of a named correction; its band is is_correction_threshold, its gating the ratio.
#   tis     w = min(ratio, high)                    Yao et al., "Your Efficient RL Framework ...", 2025
#   icepop  w = ratio if low <= ratio <= high       Ling team, "Every Step Evolves", 2025
#   mis     w = ratio if low <= product <= high     Liu et al., "When Speed Kills Stability", 2025
PRESETS = {"tis": ("token", "trunc"), "icepop": ("token", "mask"), "mis": ("seq", "mask")}


def forbidden_correction(level: str, mode: str, gating: str, threshold: tuple[float, float]) -> str | None:
    """Why this importance-sampling correction cannot be used, as one line that says what to change; None if it can.

    `threshold` is (low, high); low is -inf where only an upper bound is given. At level `off` the rest has no effect.
    """
    low, high = threshold
    if level == "off":
        return None
    if mode != "mask" and level != "token":
        return f"IS correction mode '{mode}' acts on single tokens: use level 'token', or mode 'mask' at level '{level}'"
    if mode != "mask" and gating != "ratio":
        return f"IS correction mode '{mode}' bounds the ratio itself: use gating 'ratio', or mode 'mask' with '{gating}'"
    if level == "geo" and gating != "ratio":
        return f"IS correction gating '{gating}' has no geometric mean: use level 'token' or 'seq', or gating 'ratio'"
    if high <= 0:
        return f"IS correction threshold {high} would refuse everything: give an upper bound above 0"
    # A divergence is never below 0, so low = 0 means the same as no lower bound.
    if gating != "ratio" and low > 0:
        return f"IS correction gating '{gating}' refuses large divergences only: give one upper bound, not {low} {high}"
    if low >= high:
        return f"IS correction threshold {low} {high} is empty: low must be below high"
    return None


def forbidden_loss(loss_mode: str, clip: tuple[float, float], dual_clip: float | None) -> str | None:
    """Why this clip range does not fit the policy loss, as one line that says what to change; None if it does."""
    low, high = clip
    if dual_clip is not None and loss_mode != "ppo":
        return f"dual_clip is a bound of ppo alone: leave it empty with {loss_mode}"
    if loss_mode == "cispo":
        return None if high >= 1 else f"cispo takes the ceiling of the ratio itself as the second value: at least 1, not {high}"
    if not (0 <= low < 1 and high > 0):
        return f"clip range {low} {high} means 1 - low to 1 + high: give low in [0, 1) and high above 0"
    return None
