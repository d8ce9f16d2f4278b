"""Do step times, tokens per second and walls agree with calculations by hand and with the simulator?"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch07 import tokens_to_hide
from dpbook.collectives import AlphaBeta, Link, closed_forms
from dpbook.core.errors import InvalidArgument, UnitsError
from dpbook.overlap import (
    Layer,
    Sharding,
    Sizes,
    Tensor,
    Unit,
    Wires,
    bucketed,
    equal_layers,
    naive_flat,
    per_tensor_plan,
    plan,
    simulate_sharded,
    simulate_step,
    tensors_of,
)
from dpbook.planning import (
    ACCELERATORS,
    LINKS,
    MODELS,
    Accelerator,
    Cluster,
    Job,
    best_cap,
    predict,
    strong,
    wall,
    weak,
)
from dpbook.planning.scaling import _timed_program
from tests.cases import each

H100 = ACCELERATORS["H100 SXM"]
LARGE = 70_000_000_000
WIRE = Link(0, 400e9)
"""Eight 400 Gb/s ports of a node as one link of each rank, which the printed figures assume."""


def flat(world):
    return Cluster(H100, world, WIRE, per_node=1)


def test_70_billion_on_256_h100():
    step = predict(Job(LARGE), flat(256))
    assert round(step.compute, 2) == 3.48
    assert round(256 * 4096 / step.compute / 1e3) == 301
    assert round(step.communication, 2) == 0.70
    assert step.backward == pytest.approx(2 / 3 * step.compute)


@pytest.mark.parametrize(("window", "waiting"), [("none", 0.617), ("backward", 0.485), ("all", 0.378)])
def test_at_2048_gpus_and_a_fixed_global_batch(window, waiting):
    (step,) = strong(Job(LARGE, window=window), flat(2048), [2048], 256, cut_sequences=True)
    assert step.tokens == 512  # an eighth of a sequence
    assert round(step.compute, 2) == 0.43
    share = step.exposed / step.seconds if window != "all" else (step.communication - step.compute) / step.communication
    assert share == pytest.approx(waiting, abs=1e-3)


def test_at_a_fixed_batch_per_gpu_compute_stays():
    steps = weak(Job(LARGE), flat(256), [256, 1024, 2048, 8192])
    assert {round(step.compute, 2) for step in steps} == {3.48}
    assert all(step.efficiency > 0.999 for step in steps)


@pytest.mark.parametrize(("window", "gpus"), [("backward", 850), ("all", 1274)])
def test_the_wall_of_the_preset(window, gpus):
    assert wall(Job(LARGE, window=window), flat(256), 256, range(2, 8193)) == gpus


def test_half_the_bytes_move_the_wall_to_twice_the_world_if_compute_stays():
    walls = [wall(Job(LARGE, itemsize=itemsize), flat(256), 256, range(2, 8193)) for itemsize in (2, 1)]
    assert walls == [850, 1698]


def test_tokens_per_gpu_decide_and_not_the_models_size():
    for parameters in (70_000_000, LARGE):
        exposed = []
        for context in (1000, 1400):  # F/B is 1,236 tokens
            job = Job(parameters, context=context, cap=parameters * 2 / 1024)
            step = predict(job, flat(1024))
            exposed.append(step.exposed > 2 * step.communication / 1024)
        assert exposed == [True, False]
    assert round(tokens_to_hide(H100.flops / 2, WIRE.bandwidth)) == 1236


def test_8_bit_collectives_save_70_gb_of_payload():
    assert Job(LARGE).wire_bytes - Job(LARGE, itemsize=1).wire_bytes == 70e9


def test_one_rank_has_nothing_to_send():
    step = predict(Job(LARGE), flat(1))
    assert (step.communication, step.exposed, step.efficiency) == (0, 0, 1)


@given(
    calls=st.integers(1, 40), forward=st.floats(0.01, 1), alpha=st.floats(0, 0.01), nbytes=st.integers(1, 1000),
    rate=st.floats(1e6, 1e9),
)  # fmt: skip
def test_it_agrees_with_the_simulated_step(calls, forward, alpha, nbytes, rate):
    """Equal layers with one bucket each: the formula of `predict` against the event simulation."""
    parameters = 1000 * calls * nbytes
    world = 2
    accelerator = Accelerator("made up", 1e12, 1e9, Link(0, 1e9), "this test")
    context = round(forward * accelerator.flops / 2 / parameters) or 1
    link = Link(alpha, rate)
    cluster = Cluster(accelerator, world, link, per_node=1, utilisation=1)
    job = Job(parameters, context=context, itemsize=1, cap=parameters / calls)
    step = predict(job, cluster)
    layers = equal_layers(calls, step.forward, step.backward, parameters)
    price = AlphaBeta(2 * link.alpha, link.beta)  # a ring of two: two rounds of half of the buffer
    simulated = simulate_step(layers, per_tensor_plan(tensors_of(layers)), price)
    assert step.seconds == pytest.approx(simulated.duration)
    assert step.communication == pytest.approx(simulated.busy("communication"))
    unhidden = predict(Job(parameters, context=context, itemsize=1, cap=2 * parameters, window="none"), cluster)
    assert unhidden.seconds == pytest.approx(simulate_step(layers, naive_flat(layers), price).duration)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), cap=st.integers(1, 200), pieces=st.integers(1, 4),
    rate=st.floats(1e2, 1e6), alpha=st.floats(0, 0.01),
)  # fmt: skip
def test_uneven_tensors_and_micro_batches_agree_with_the_simulated_step(sizes, cap, pieces, rate, alpha):
    """Backward in proportion to the bytes of a tensor: buckets by DDP's rule, and only the last micro-batch hides."""
    tensors = [Tensor(str(k), size, "uint8") for k, size in enumerate(sizes)]
    cut, link = plan(tensors, cap, None), Link(alpha, 1e6 * rate)
    accelerator = Accelerator("made up", 1e12, 1e9, Link(0, 1e9), "this test")
    cluster = Cluster(accelerator, 2, link, per_node=1, utilisation=1)
    job = Job(sum(sizes), context=10**10, itemsize=1, plan=cut, accumulation=pieces)
    step = predict(job, cluster, pieces)
    one_byte = step.forward / pieces / sum(sizes)
    layers = [Layer(t.name, one_byte * t.nbytes, 2 * one_byte * t.nbytes, (t,)) for t in tensors]
    price = AlphaBeta(2 * link.alpha, link.beta)
    simulated = simulate_step(layers, bucketed(cut), price, accumulation=pieces)
    assert step.seconds == pytest.approx(simulated.duration)
    assert step.communication == pytest.approx(simulated.busy("communication"))


def test_no_tensor_of_llama_2_70b_is_cut():
    """Buckets counted by hand in the order of backward, with a first limit of 1 MiB, and their price on the ring."""
    model, filled, calls, limit = MODELS["Llama-2 70B"], 0, 0, 2**20
    for tensor in reversed(model.tensors()):
        filled += tensor.nbytes
        if filled >= limit:
            filled, calls, limit = 0, calls + 1, 25 * 2**20
    job = Job.of(model)
    assert job.calls == calls + bool(filled) == 482
    pod = Cluster(H100, 8192, LINKS["InfiniBand NDR 400 Gb/s"])
    latencies = 482 * (2 * 1023 * 5e-6 + 2 * 7168 * 3e-6)
    step = predict(job, pod)
    assert step.communication == pytest.approx(latencies + 2 * 8191 / 8192 * job.wire_bytes / 400e9, rel=1e-3)
    assert 27 < step.seconds < 28


@each("stage", [0, 3])
def test_hidden_communication_lengthens_computation(stage):
    job = Job(LARGE, context=2800, stage=stage)
    alone, beside = (predict(job, Cluster(H100, 1024, WIRE, contention=share)) for share in (0, 0.5))
    hidden = alone.communication - alone.exposed
    assert hidden > 0
    assert beside.seconds - alone.seconds == pytest.approx(0.5 * hidden)
    assert beside.efficiency < alone.efficiency


def test_recomputation_takes_one_more_forward_which_hides_more():
    plain, recomputed = (predict(Job(LARGE, context=1000, recompute=r), flat(1024)) for r in (False, True))
    assert recomputed.backward == pytest.approx(plain.backward + plain.forward)
    assert recomputed.exposed < plain.exposed


@pytest.mark.parametrize(("pieces", "share"), [(1, 0.01), (4, 0.44), (8, 0.72)])
def test_only_the_last_micro_batch_hides(pieces, share):
    """2,800 tokens a step; in the first 80 layers' worth of buckets an 80th is always exposed."""
    job = Job(LARGE, context=2800 // pieces, accumulation=pieces, cap=2 * LARGE / 80)
    step = predict(job, flat(1024), pieces)
    assert step.exposed / step.communication == pytest.approx(share, abs=5e-3)


def test_a_mixture_of_experts_computes_with_few_and_syncs_all():
    """The wall of 671 billion parameters of which 37 are active is 671/37 times nearer."""
    dense, sparse = Job(671 * 10**9), Job(671 * 10**9, active=37 * 10**9)
    walls = [wall(job, flat(256), 4096, range(2, 2**17)) - 1 for job in (dense, sparse)]
    assert walls[0] / walls[1] == pytest.approx(671 / 37, rel=2e-3)
    assert tokens_to_hide(H100.flops / 2, WIRE.bandwidth, per_active=671 / 37) == pytest.approx(22_420, abs=1)


FORWARD, BACKWARD, RING = 2.0, 4.0, 6.0


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    ("stage", "window", "sent", "exposed"),
    [  # per micro-batch and, after the plus, once; a half of the ring is 3
        (0, "backward", lambda k: 6, lambda k: 6 - 4),
        (1, "none", lambda k: 6, lambda k: 6),
        (1, "backward", lambda k: 6, lambda k: 0 + 3),
        (1, "all", lambda k: 6, lambda k: 0 + (3 - 2)),
        (2, "backward", lambda k: 3 * k + 3, lambda k: 0 + 3),
        (2, "all", lambda k: 3 * k + 3, lambda k: 0 + (3 - 2)),
        (3, "none", lambda k: 9 * k, lambda k: 9 * k),
        (3, "backward", lambda k: 9 * k, lambda k: ((3 - 2) + (6 - 4)) * k),
    ],
)
def test_what_each_stage_of_zero_sends_and_exposes(pieces, stage, window, sent, exposed):
    """Seconds by hand, for micro-batches of 2 and 4 seconds and a ring of 6, without latency, in tiny buckets."""
    accelerator = Accelerator("made up", 1e12, 1e9, Link(0, 1e9), "this test")
    parameters = 10**9
    link = Link(0, 2 * parameters / RING)  # two ranks: a ring of 2 bytes a parameter sends them once
    cluster = Cluster(accelerator, 2, link, per_node=1, utilisation=1)
    job = Job(
        parameters, context=round(FORWARD * 1e12 / (2 * parameters)), stage=stage, window=window, accumulation=pieces,
        cap=parameters / 10_000,
    )  # fmt: skip
    step = predict(job, cluster, pieces)
    assert (step.forward, step.backward) == (FORWARD * pieces, BACKWARD * pieces)
    assert step.communication == pytest.approx(sent(pieces))
    assert step.exposed == pytest.approx(exposed(pieces), abs=0.01 * pieces)


def test_fp32_gradients_take_twice_the_wire_of_zero_1s_scatter_and_not_of_its_gather():
    half = predict(Job(10**9, stage=1), flat(8)).communication / 2
    assert predict(Job(10**9, stage=1, itemsize=4), flat(8)).communication == pytest.approx(3 * half)


@each("ports", [8, 2, 1])
def test_hybrid_shards_cost_a_hierarchical_ring_and_the_gather_of_forward(ports):
    where = Cluster(H100, 64, LINKS["InfiniBand NDR 400 Gb/s"], ports=ports)
    job = Job(10**9, stage=3, hybrid=True, cap=1e12)
    gather = closed_forms.ring(8, H100.fabric)(2e9) / 2
    whole = closed_forms.hierarchical_ring(8, 8, where.topology)(2e9) + gather
    assert predict(job, where).communication == pytest.approx(whole)


def test_hybrid_sharding_needs_two_data_ranks_in_a_node():
    """With one data rank a node it would be an all-reduce of the whole model, and keep all of it on every rank."""
    for cluster, cut in ((flat(8), 1), (Cluster(H100, 64, WIRE), 8)):
        with pytest.raises(InvalidArgument, match=r"^hybrid must be False if a node has one data rank"):
            predict(Job(10**9, stage=3, hybrid=True, cut=cut), cluster)
    assert predict(Job(10**9, stage=3, hybrid=True, cut=8), Cluster(H100, 8, WIRE)).communication == 0
    assert predict(Job(10**9, stage=3, hybrid=True, cut=4), Cluster(H100, 64, WIRE)).communication > 0


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8), stage=st.integers(1, 3), prefetch=st.integers(0, 3),
    pieces=st.integers(1, 4), early=st.booleans(), rate=st.floats(1e2, 1e6), alpha=st.floats(0, 0.01),
)  # fmt: skip
def test_a_sharded_step_of_a_few_micro_batches_is_the_simulated_one(sizes, stage, prefetch, pieces, early, rate, alpha):
    """All micro-batches simulated, where the planner extrapolates from two; rings of two ranks, one round each."""
    cut, link = plan([Tensor(str(k), n, "uint8") for k, n in enumerate(sizes)], 0, None), Link(alpha, 1e6 * rate)
    cluster = Cluster(Accelerator("made up", 1e12, 1e9, link, "this test"), 2, link, per_node=1, utilisation=1)
    job = Job(
        sum(sizes), context=10**10, itemsize=1, plan=cut, accumulation=pieces, stage=stage, prefetch=prefetch,
        window="all" if early else "backward",
    )  # fmt: skip
    step = predict(job, cluster, pieces)
    one = step.forward / pieces / sum(sizes)
    half = AlphaBeta(link.alpha, link.beta / 2)
    simulated = simulate_sharded(
        [Unit(str(k), one * n, 2 * one * n, n) for k, n in enumerate(sizes)],
        Sharding(stage, 2, prefetch=prefetch, behind_forward=early),
        Wires(half, half, half), sizes=Sizes(2, 1, 12), accumulation=pieces,
    )  # fmt: skip
    assert step.seconds == pytest.approx(simulated.duration)
    assert step.communication == pytest.approx(simulated.timeline.busy("communication"))


@each(
    ("stage", "hybrid", "depth", "network"),
    [(1, False, 1, 50e9), (2, False, 1, 20e9), *((3, False, d, 50e9) for d in (0, 1, 4)), (3, True, 1, 20e9)],
)
def test_many_equal_units_are_those_of_the_simulated_step(stage, hybrid, depth, network):
    """All 150 units simulated, where the planner extrapolates from a few. Rings of 16, or of 4 and 4."""
    parameters, link, fabric = 150 * 10**7, Link(5e-6, network), Link(3e-6, 450e9)
    cluster = Cluster(replace(H100, fabric=fabric), 16, link, per_node=4)
    job = Job(parameters, stage=stage, hybrid=hybrid, prefetch=depth, accumulation=3, cap=2e7, context=2048)
    step = predict(job, cluster, 3)
    if hybrid:
        half, across = AlphaBeta(3 * 3e-6, 3 / 4 / 450e9), AlphaBeta(6 * 5e-6, 6 / 4 / network)
    else:
        half, across = AlphaBeta(3 * 5e-6 + 12 * 3e-6, 15 / 16 / (4 * network)), AlphaBeta(0, 0)
    simulated = simulate_sharded(
        [Unit(str(k), step.forward / 450, step.backward / 450, 10**7) for k in range(150)],
        Sharding(stage, 4 if hybrid else 16, 4 if hybrid else 1, depth), Wires(half, half, half, across),
        sizes=Sizes(2, 2, 12), accumulation=3,
    )  # fmt: skip
    assert step.seconds == pytest.approx(simulated.duration)
    assert step.communication == pytest.approx(simulated.timeline.busy("communication"))


def test_the_program_of_a_sharded_step_is_made_once_for_all_worlds():
    """One program for one micro-batch and one for two; an explorer predicts some thirty worlds at every change."""
    programs = _timed_program.cache_info().misses
    job = Job.of(MODELS["Llama-2 7B"], stage=3, accumulation=4)
    steps = strong(job, Cluster(H100, 8, WIRE), [8, 16, 32, 64], 4 * 64)
    assert len({step.seconds for step in steps}) == 4
    assert _timed_program.cache_info().misses == programs + 2


@each("cut", [1, 2, 4, 8, 16, 64])
@each("ports", [8, 4, 1])
def test_the_parts_of_a_copy_share_the_ports_of_their_node(cut, ports):
    """Without latencies a ring per port sends 2(N − 1)/N of the part of a rank, and a node's groups share its ports."""
    cluster = Cluster(replace(H100, fabric=Link(0, 450e9)), 128, Link(0, 50e9), ports=ports)
    per_copy, copies = 1 / cut, 128 // cut
    step = predict(Job(10**9, cut=cut), cluster)
    groups = min(cut, 8)
    network = 2 * (copies - 1) / copies * 2e9 * per_copy * groups / (ports * 50e9)
    assert step.communication == pytest.approx(network)


@given(st.floats(1e8, 1e12), st.floats(1.01, 100), st.integers(1, 64))
def test_more_bandwidth_never_slows_a_step(bandwidth, times, nodes):
    slow, fast = (Cluster(H100, 8 * nodes, Link(5e-6, b)) for b in (bandwidth, bandwidth * times))
    assert predict(Job(10**9), fast).seconds <= predict(Job(10**9), slow).seconds * (1 + 1e-12)


@given(st.integers(1, 10**11), st.integers(1, 64), st.sampled_from(["none", "backward", "all"]))
def test_exposed_time_lies_between_0_and_the_communication(parameters, nodes, window):
    step = predict(Job(parameters, window=window), Cluster(H100, 8 * nodes, LINKS["InfiniBand NDR 400 Gb/s"]))
    assert 0 <= step.exposed <= step.communication * (1 + 1e-9)
    assert 0 < step.efficiency <= 1


def test_frozen_weights_send_less_and_compute_less():
    full, adapted = (predict(Job(10**9, trained=n), flat(8)) for n in (None, 10**7))
    assert adapted.communication == pytest.approx(full.communication / 100)
    assert adapted.forward == full.forward
    assert adapted.backward == pytest.approx(full.backward * (1 + 0.01) / 2)


def test_stage_3_gathers_frozen_weights_too():
    """All 2 · 10⁹ bytes of the weights twice, and the gradients of a hundredth once, each (N − 1)/N of them."""
    step = predict(Job(10**9, trained=10**7, stage=3), flat(8))
    assert step.communication == pytest.approx(7 / 8 * (2 * 2e9 + 2e7) / WIRE.bandwidth)


def test_the_best_cap_is_no_worse_than_the_usual_one():
    cluster = Cluster(H100, 1024, LINKS["InfiniBand NDR 400 Gb/s"])
    job = Job(7_000_000_000)
    best = best_cap(job, cluster)
    times = [predict(Job(7_000_000_000, cap=cap), cluster).seconds for cap in (best, 25 * 2**20, best * 2, best / 2)]
    assert min(times) == times[0]
    assert best > 25 * 2**20  # 2(N − 1) latencies for each bucket: a large world wants large buckets


@pytest.mark.parametrize("algorithm", ["Ring", "Tree", "NVLS", "NVLSTree"])
def test_a_node_alone_uses_its_fabric_only(algorithm):
    job = Job(10**9, algorithm=algorithm)
    times = {predict(job, Cluster(H100, 8, link)).seconds for link in LINKS.values()}
    assert len(times) == 1


def test_fewer_ports_cost_more():
    times = [
        predict(Job(LARGE, cap=1e12), Cluster(H100, 256, LINKS["InfiniBand NDR 400 Gb/s"], ports=p)) for p in (8, 4, 1)
    ]
    assert [round(step.communication / times[0].communication) for step in times] == [1, 2, 8]


@each(
    ("call", "message"),
    [
        (lambda: predict(Job(10), flat(8), 0.5), "sequences must be a whole number per rank"),
        (lambda: predict(Job(10), flat(8), float("nan")), "sequences must be a finite number above 0"),
        (lambda: strong(Job(10), flat(8), [16], 8), "world must be a divisor of the 8 sequences"),
        (lambda: strong(Job(10, accumulation=2), flat(8), [8], 8), "world must be a divisor of .* 2 micro-batches"),
        (lambda: wall(Job(10), flat(8), 8, [16, 8, 32]), "worlds must be integers of at least 1 in ascending order"),
        (lambda: wall(Job(10), flat(8), 8, range(9)), "worlds must be integers of at least 1 in ascending order"),
        (lambda: Cluster(H100, 12, WIRE), "world must be at most 8, or a multiple"),
        (lambda: Cluster(H100, 8, 400e9), "network must be a Link"),
        (lambda: Cluster("H100", 8, WIRE), "accelerator must be an Accelerator"),
        (lambda: Cluster(H100, 8, WIRE, utilisation=50), "utilisation must be a share"),
        (lambda: Cluster(H100, 8, WIRE, wires=2), "wires must be a share"),
        (lambda: Cluster(H100, 8, WIRE, ports=0), "ports must be"),
        (lambda: Cluster(H100, 16, WIRE).data_ranks(3), "cut must be a divisor or a multiple"),
        (lambda: Job(10, trained=11), "trained must be"),
        (lambda: Job(10, active=11), "active must be"),
        (lambda: Job(10, stage=4), "stage must be"),
        (lambda: Job(10, stage=3, prefetch=-1), "prefetch must be"),
        (lambda: Job(10, stage=1, algorithm="Tree"), "algorithm must be Ring with ZeRO"),
        (lambda: Job(10, hybrid=True), "hybrid must be False except in stage 3"),
        (lambda: Job(10, plan=plan([Tensor("a", 3)])), "plan must be of 20 bytes"),
        (lambda: Job(2, cut=2, plan=plan([Tensor("a", 1)])), "plan must be None with a cut"),
        (lambda: Job.of(70), "model must be a Transformer"),
        (lambda: Job.of(MODELS["Qwen3 4B"], itemsize=3), "itemsize must be one of 1, 2, 4"),
        (lambda: predict(Job(10, accumulation=2), flat(8), 1), "sequences must be a whole number per rank and micro"),
        (lambda: predict(Job(10, algorithm="NVLS"), Cluster(H100, 16, WIRE)), "algorithm must be NVLSTree beyond"),
        (lambda: Job(10, window="forward"), "window must be one of none, backward, all"),
        (lambda: Job(10, algorithm="tree"), "algorithm must be one of Ring, Tree, NVLS, NVLSTree"),
        (lambda: wall(Job(10, window="none"), flat(8), 8, [8]), "window must be backward or all"),
    ],
)
def test_what_contradicts_itself_is_refused(call, message):
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        call()


@pytest.mark.parametrize(("flops", "memory"), [(989, 80e9), (989e12, 80)])
def test_tera_and_giga_left_out_are_noticed(flops, memory):
    with pytest.raises(UnitsError, match=r"is 989e12|is 80e9"):
        Accelerator("H100", flops, memory, WIRE, "")
