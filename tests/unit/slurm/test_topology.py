"""Where engines and trainer ranks go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.flags import resolve
from engine.topology import DoesNotFit, arrange, check_gpus, nodes_of


def config(**flags):
    tree, wrong = resolve({}, {name.replace("__", "."): [str(value)] for name, value in flags.items()})
    assert not wrong
    return tree


def slots(*gpus: int) -> dict[str, int]:
    return {f"molt_node_{i}": count for i, count in enumerate(gpus)}


def test_cpu_engine_and_trainer_go_to_different_nodes():
    layout = arrange(slots(0, 0), config(placement__device="cpu"))
    assert (layout.engines, layout.trainers, layout.router) == (("molt_node_0",), ("molt_node_1",), "molt_node_0")
    assert set(layout.runners) == {"molt_node_0"}


def test_two_nodes_of_eight():
    layout = arrange(slots(8, 8), config(actor__num_gpus_per_node=8, vllm__num_engines=8))
    assert layout.trainers == ("molt_node_1",) * 8 and layout.engines == ("molt_node_0",) * 8


def test_one_node_is_shared():
    layout = arrange(slots(8), config(actor__num_gpus_per_node=4, vllm__num_engines=2, vllm__tensor_parallel_size=2))
    assert layout.engines == ("molt_node_0",) * 2 and len(layout.trainers) == 4


def test_what_the_trainer_leaves_is_used_last():
    layout = arrange(slots(4, 8), config(actor__num_gpus_per_node=4, vllm__num_engines=2, vllm__tensor_parallel_size=4))
    assert layout.engines == ("molt_node_0", "molt_node_1")


def test_too_small_is_said():
    with pytest.raises(DoesNotFit, match="fits no node"):
        arrange(slots(8), config(actor__num_gpus_per_node=8))
    with pytest.raises(DoesNotFit, match=r"actor\.num_nodes wants 2"):
        arrange(slots(8), config(actor__num_nodes=2, actor__num_gpus_per_node=8))


def test_one_machine_with_too_few_gpus_is_said():
    tree = config(placement__device="cuda", actor__num_gpus_per_node=4, vllm__num_engines=2, vllm__tensor_parallel_size=2)
    check_gpus(8, tree)
    check_gpus(0, config(placement__device="cpu"))
    with pytest.raises(DoesNotFit, match=r"has 7 GPUs, but the engines need 4 .* trainer 4 .*--on slurm"):
        check_gpus(7, tree)


def test_an_engine_larger_than_a_node_takes_whole_nodes():
    tree = config(actor__num_nodes=2, actor__num_gpus_per_node=8, vllm__num_engines=2, vllm__tensor_parallel_size=16)
    layout = arrange(slots(*[8] * 6), tree)
    assert layout.engines == ("molt_node_0", "molt_node_2") and set(layout.trainers) == {"molt_node_4", "molt_node_5"}


def test_labelled_nodes_in_order_of_their_numbers():
    found = nodes_of([{"CPU": 4, "molt_node_10": 1000.0}, {"molt_node_2": 1000.0, "GPU": 8.0}, {"CPU": 1}])
    assert list(found.items()) == [("molt_node_2", 8), ("molt_node_10", 0)]


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_no_node_gets_more_than_it_has(gpus, num_nodes, each, engines, size):
    tree = config(
        actor__num_nodes=num_nodes, actor__num_gpus_per_node=each, vllm__num_engines=engines, vllm__tensor_parallel_size=size
    )
    try:
        layout = arrange(slots(*gpus), tree)
    except DoesNotFit:
        return
    used = {
        label: size * layout.engines.count(label) + layout.trainers.count(label) for label in {*layout.engines, *layout.trainers}
    }
    inside = [label for label in layout.engines if gpus[int(label.rpartition("_")[2])] >= size]
    used = {label: size * inside.count(label) + layout.trainers.count(label) for label in {*inside, *layout.trainers}}
    assert all(count <= gpus[int(label.rpartition("_")[2])] for label, count in used.items())
    assert len(layout.engines) == engines and len(layout.trainers) == num_nodes * each


def test_colocated_engines_share_the_gpus_of_the_ranks():
    tree = config(placement__colocate=True, placement__device="cuda", actor__num_gpus_per_node=4, vllm__num_engines=4)
    layout = arrange(slots(4), tree)
    assert layout.engines == layout.trainers == ("molt_node_0",) * 4
    check_gpus(4, tree)
    with pytest.raises(DoesNotFit):
        check_gpus(3, tree)
