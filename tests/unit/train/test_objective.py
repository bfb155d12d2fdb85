"""The gradient of a whole optimizer step against autograd of a naive implementation: transformers and one token at a time."""

import numpy as np
import pytest
import torch
from helpers import config, order, rollouts, save_tiny, tiny_model

from engine.algo.loss import PolicySettings
from engine.train.actor import Trainer
from engine.train.plan import TrainerSpec
from tests.unit.algo import slow_algo

SETTINGS = {
    "ppo": {},
    "cispo": {"loss_mode": "cispo", "eps_clip_low_high": (0.2, 5.0), "loss_agg_mode": "seq-mean-token-mean"},
    "gspo": {"loss_mode": "gspo", "loss_agg_mode": "prompt-mean-token-mean"},
}


def trainer_gradients(tmp_path, records, actor) -> dict[str, torch.Tensor]:
    """Correction, entropy bonus and a KL to a reference in the loss; several micro-batches."""
    made = Trainer(get=lambda references: references)
    sections = {
        "actor": {"entropy_coef": 0.01, "max_norm": 1e9, **actor},
        "algo": {
            "advantage": {"is_correction_level": "token", "is_correction_threshold": (0.1, 10.0)},
            "kl": {"init_coef": 0.3, "use_loss": True, "estimator": "k3"},
        },
    }
    paths = [save_tiny(tmp_path / str(seed), moe=False, seed=seed) for seed in (0, 1)]
    made.setup(TrainerSpec(config(**sections), paths[0], reference_path=paths[1]))
    found: dict[str, torch.Tensor] = {}

    def capture(*_):
        found.update({n: p.grad.full_tensor().clone() for n, p in made.policy.lm.named_parameters()})

    made.optimizer.register_step_pre_hook(capture)
    made.train(order(records, budget=30))
    return found


def padded(rows, width):
    return [list(row) + [0.0] * (width - len(row)) for row in rows]


def naive_gradients(records, settings) -> dict[str, torch.Tensor]:
    policy, reference = (tiny_model(moe=False, seed=seed) for seed in (0, 1))
    segments = [r.segments[0] for r in records]
    width = max(len(s) for s in segments)
    logprobs_ST, entropy_ST, reference_ST = (torch.zeros(len(segments), width, dtype=torch.float64) for _ in range(3))
    for s, segment in enumerate(segments):
        ids_T = torch.from_numpy(segment.token_ids.astype(np.int64))
        targets = (range(len(ids_T) - 1), ids_T[1:])
        logp_TV = policy(input_ids=ids_T[None]).logits[0, :-1].log_softmax(-1).double()
        logprobs_ST[s, 1 : len(ids_T)] = logp_TV[targets]
        entropy_ST[s, 1 : len(ids_T)] = -(logp_TV.exp() * logp_TV).sum(-1)
        with torch.no_grad():
            reference_ST[s, 1 : len(ids_T)] = reference(input_ids=ids_T[None]).logits[0, :-1].log_softmax(-1)[targets].double()
    mask = padded([s.loss_mask.tolist() for s in segments], width)
    mu = padded([s.logprobs.tolist() for s in segments], width)
    advantages = [[sample.advantage] * width for sample in order(records).samples]
    weight = slow_algo.weights(logprobs_ST.tolist(), mu, mask, "token", "mask", "ratio", 0.1, 10.0)
    tokens = sum(map(sum, mask))
    prompts = [i // 2 for i in range(len(records))]
    loss = slow_algo.objective(logprobs_ST, None, advantages, mask, entropy_ST, weight, settings, tokens, prompts)
    d_ST = logprobs_ST - reference_ST
    kl_ST = (torch.exp(-d_ST) - 1 + d_ST).clamp_max(10)
    loss = loss + 0.3 * (torch.tensor(mask) * kl_ST).sum() / tokens
    loss.backward()
    return {n: p.grad for n, p in policy.named_parameters()}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_gradient_is_that_of_a_naive_implementation(name, tmp_path, layout):
    records = rollouts(6, layers=None)
    ours = trainer_gradients(tmp_path, records, SETTINGS[name])
    actor = config(actor={"entropy_coef": 0.01, **SETTINGS[name]}).actor
    clip_low, clip_high = actor.eps_clip_low_high
    settings = PolicySettings(actor.loss_mode, clip_low, clip_high, aggregation=actor.loss_agg_mode, entropy_coef=0.01)
    naive = naive_gradients(records, settings)
    flat, expected = (torch.cat([g[n].flatten().double() for n in naive]) for g in (ours, naive))
    assert (flat - expected).norm() / expected.norm() < 1e-5
