"""The formulas a second time: float64, one token at a time, written from the definitions and not from engine.algo."""

import math

import torch


def tokens_of(mask):
    return [(s, t) for s, row in enumerate(mask) for t, on in enumerate(row) if on]


def zeros_like(mask):
    return [[0.0] * len(row) for row in mask]


def grpo(rewards, groups, rollout_of, mask):
    advantages = zeros_like(mask)
    for s, t in tokens_of(mask):
        mine = rewards[rollout_of[s]]
        if not math.isfinite(mine):
            continue
        peers = [r for r, g in zip(rewards, groups) if g == groups[rollout_of[s]] and math.isfinite(r)]
        if len(peers) < 2 or min(peers) == max(peers):
            continue
        mean = math.fsum(peers) / len(peers)
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in peers) / (len(peers) - 1))
        advantages[s][t] = (mine - mean) / (std + 1e-9)
    return advantages


def from_peers(formula):
    """An estimator of one token from the rollout's own reward and those of the others in its group."""

    def advantages_of(rewards, groups, rollout_of, mask):
        advantages = zeros_like(mask)
        for s, t in tokens_of(mask):
            me = rollout_of[s]
            others = [r for i, r in enumerate(rewards) if i != me and groups[i] == groups[me] and math.isfinite(r)]
            if math.isfinite(rewards[me]):
                advantages[s][t] = formula(rewards[me], others)
        return advantages

    return advantages_of


dr_grpo = from_peers(lambda mine, others: mine - math.fsum([mine, *others]) / (len(others) + 1))
rloo = from_peers(lambda mine, others: mine - (math.fsum(others) / len(others) if others else 0))


def whitened(values, counted):
    if not counted:
        return values
    mean = math.fsum(values[s][t] for s, t in counted) / len(counted)
    variance = math.fsum((values[s][t] - mean) ** 2 for s, t in counted) / len(counted)
    for s, t in counted:
        values[s][t] = (values[s][t] - mean) / math.sqrt(max(variance, 1e-8))
    return values


def reinforce_baseline(rewards, groups, rollout_of, mask, no_whiten):
    values = dr_grpo(rewards, groups, rollout_of, mask)
    counted = [(s, t) for s, t in tokens_of(mask) if math.isfinite(rewards[rollout_of[s]])]
    return values if no_whiten else whitened(values, counted)


def reinforce(rewards, rollout_of, mask, token_rewards, gamma, no_whiten):
    returns, counted = zeros_like(mask), []
    for s, row in enumerate(mask):
        reward = rewards[rollout_of[s]]
        action_tokens = [t for t, on in enumerate(row) if on]
        if not action_tokens or not math.isfinite(reward):
            continue
        following = 0.0
        for t in reversed(range(len(row))):
            immediate = (token_rewards[s][t] if row[t] else 0.0) + (reward if t == action_tokens[-1] else 0.0)
            following = immediate + gamma * following
            if row[t]:
                returns[s][t] = following
                counted.append((s, t))
    return returns if no_whiten else whitened(returns, counted)


def gae(rewards, rollout_of, mask, token_rewards, values, gamma, lam, no_whiten):
    """Every advantage as the explicit sum over later deltas, feedback left out."""
    advantages, counted = zeros_like(mask), []
    for s, row in enumerate(mask):
        on = [t for t, flag in enumerate(row) if flag]
        if not math.isfinite(rewards[rollout_of[s]]):
            continue
        deltas = []
        for k, t in enumerate(on):
            last = k == len(on) - 1
            reward = token_rewards[s][t] + (rewards[rollout_of[s]] if last else 0)
            deltas.append(reward + (0 if last else gamma * values[s][on[k + 1]]) - values[s][t])
        for k, t in enumerate(on):
            advantages[s][t] = math.fsum((gamma * lam) ** i * d for i, d in enumerate(deltas[k:]))
            counted.append((s, t))
    return advantages if no_whiten else whitened(advantages, counted)


def statistic(old, mu, level, gating):
    """Per-token statistics of one segment, given the log-probs of its sampled tokens alone."""
    if gating == "ratio":
        logs = [min(max(o - m, -30), 30) for o, m in zip(old, mu)]
        if level == "token":
            return [math.exp(x) for x in logs]
        total = sum(logs)
        return [math.exp(min(max(total, -30), 30)) if level == "seq" else math.exp(total / len(logs))] * len(logs)
    values = []
    for o, m in zip(old, mu):
        if gating == "tv":
            values.append(abs(math.exp(m) - math.exp(o)))
        else:
            p, q = (min(max(math.exp(x), 1e-6), 1 - 1e-6) for x in (m, o))
            values.append(max(p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)), 0))
    return values if level == "token" else [sum(values) / len(values)] * len(values)


def weights(old, mu, mask, level, mode, gating, low, high):
    out = zeros_like(mask)
    for s, row in enumerate(mask):
        on = [t for t, flag in enumerate(row) if flag]
        if not on:
            continue
        ratios = statistic([old[s][t] for t in on], [mu[s][t] for t in on], "token", "ratio")
        if level == "off":
            stats = ratios = [1.0] * len(on)
        else:
            stats = statistic([old[s][t] for t in on], [mu[s][t] for t in on], level, gating)
        for t, ratio, stat in zip(on, ratios, stats):
            if level == "off":
                out[s][t] = 1.0
            elif mode == "mask":
                out[s][t] = ratio if low <= stat <= high else 0.0
            else:
                out[s][t] = min(max(stat, low), high) if mode == "clip" else min(stat, high)
    return out


def token_loss(settings, logprob, log_ratio, mean_log_ratio, advantage):
    """Loss of one token before the importance weight; its log-prob and ratio are scalars with gradient."""
    if settings.loss_mode == "cispo":
        return -min(math.exp(min(max(log_ratio.item(), -30), 30)), settings.clip_high) * advantage * logprob
    if settings.loss_mode == "gspo":
        log_ratio = log_ratio - log_ratio.detach() + mean_log_ratio
    ratio = torch.exp(torch.clamp(log_ratio, -30, 30))
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    gain, bounded = ratio * advantage, min(max(ratio.item(), low), high) * advantage
    if bounded < gain.item():
        gain = gain * 0 + bounded
    if settings.dual_clip is not None and advantage < 0 and gain.item() < settings.dual_clip * advantage:
        gain = gain * 0 + settings.dual_clip * advantage
    return -gain


def share(aggregation, s, mask, prompts, tokens):
    """What a token of segment s contributes to the loss: `tokens` is the count behind token-mean."""
    own = [sum(row) for row in mask]
    if aggregation == "token-mean":
        return 1 / tokens
    if aggregation == "seq-mean-token-mean":
        return 1 / own[s] / sum(n > 0 for n in own)
    of_prompt = {p: sum(n for n, q in zip(own, prompts) if q == p) for p in prompts}
    return 1 / of_prompt[prompts[s]] / sum(n > 0 for n in of_prompt.values())


def objective(logprobs, old, advantages, mask, entropy, weight, settings, tokens, prompts):
    """The loss as one torch scalar; `logprobs` and `entropy` are tensors with gradient, the rest are lists."""
    total = torch.zeros((), dtype=torch.float64)
    for s, row in enumerate(mask):
        on = [t for t, flag in enumerate(row) if flag]
        log_ratios = {t: logprobs[s, t] - (logprobs[s, t].detach() if old is None else old[s][t]) for t in on}
        clamped = [min(max(x.item(), -30), 30) for x in log_ratios.values()]
        for t in on:
            loss = token_loss(settings, logprobs[s, t], log_ratios[t], math.fsum(clamped) / len(on), advantages[s][t])
            loss = weight[s][t] * loss - (settings.entropy_coef or 0) * entropy[s, t]
            total = total + loss * share(settings.aggregation, s, mask, prompts, tokens)
    return total
