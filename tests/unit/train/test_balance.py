from hypothesis import given
from hypothesis import strategies as st

from engine.train.balance import form_micro_batches, plan_optimizer_steps, spread_over_ranks

lengths_of_samples = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@given(lengths_of_samples, st.integers(1, 5), st.integers(1, 60), st.integers(1, 7), st.data())
def test_every_sample_trains_once_and_whole_rollouts_share_a_step(lengths, ranks, budget, per_step, data):
    rollouts = sorted(data.draw(st.lists(st.integers(0, 12), min_size=len(lengths), max_size=len(lengths))))
    tokens = [n // 2 for n in lengths]
    steps = plan_optimizer_steps(
        lengths, tokens, rollouts, [r // 2 for r in rollouts], rollouts_per_step=per_step, ranks=ranks, budget=budget
    )
    members = [[s for rank in step.micro_batches for batch in rank for s in batch] for step in steps]
    assert sorted(s for step in members for s in step) == list(range(len(lengths)))
    for step, samples in zip(steps, members):
        assert len(step.micro_batches) == ranks
        assert len({len(rank) for rank in step.micro_batches}) == 1
        assert step.tokens == sum(tokens[s] for s in samples)
        assert len({rollouts[s] for s in samples}) <= per_step
    homes = [{i for i, step in enumerate(members) for s in step if rollouts[s] == r} for r in set(rollouts)]
    assert all(len(home) == 1 for home in homes)


@given(lengths_of_samples, st.integers(1, 60))
def test_micro_batches_keep_the_padded_budget(lengths, budget):
    for batch in form_micro_batches(range(len(lengths)), lengths, budget):
        assert len(batch) == 1 or len(batch) * max(lengths[s] for s in batch) <= budget


@given(lengths_of_samples, st.integers(1, 5))
def test_loads_differ_by_at_most_the_longest_sample(lengths, ranks):
    loads = [sum(lengths[s] for s in share) for share in spread_over_ranks(range(len(lengths)), lengths, ranks)]
    assert max(loads) - min(loads) <= max(lengths)


def test_a_worked_example():
    # Longest first over two ranks: 9 | 7 5, then 4 to the first, 2 to the second; budget 10 holds two rows of 5.
    steps = plan_optimizer_steps(
        [4, 9, 5, 7, 2], [1, 1, 1, 1, 1], [0, 1, 2, 3, 4], [0, 0, 1, 1, 1], rollouts_per_step=5, ranks=2, budget=10
    )
    assert steps[0].micro_batches == [[[1], [0]], [[3], [2, 4]]]
    assert (steps[0].tokens, steps[0].rows, steps[0].prompts) == (5, 5, 2)
    assert steps[0].prompt_tokens == {0: 2, 1: 2, 2: 3, 3: 3, 4: 3}


def test_optimizer_steps_take_rollouts_in_order():
    steps = plan_optimizer_steps([3, 3, 3, 3], [2, 2, 2, 2], [0, 0, 1, 2], [0, 0, 0, 0], rollouts_per_step=2, ranks=2, budget=100)
    assert [step.micro_batches for step in steps] == [[[[0, 2]], [[1]]], [[[3]], [[]]]]
