"""Does the stand-in behave as an accelerator does? One process for all questions."""

import gc
import io
import itertools
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpbook.book import sim
from tests.book.sim.sim import needs_sim, refusal
from tests.scenarios import Scenarios

pytestmark = needs_sim
scenario = Scenarios(sim.install)
SLOWER, KERNELS = 0.02, 5
CROWD = 1000


@scenario
def work_is_queued_and_its_values_come_later():
    x = torch.ones(3, device="sim")
    with sim.hold():
        y = x + 1
        event = torch.Event()
        event.record()
        assert (event.query(), torch.accelerator.current_stream().query()) == (False, False)
    assert y.tolist() == [2.0] * 3
    assert event.query()


@scenario
def a_timer_around_calls_measures_none_of_the_kernels():
    """The stream stands still until the timer is read: whatever it shows, no kernel is in it."""
    x = torch.ones(3, device="sim")
    begin, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    with sim.slower(SLOWER), sim.watch() as spans:
        with sim.hold():
            started = time.perf_counter()
            begin.record()
            for _ in range(KERNELS):
                x = x + 1
            end.record()
            launched = time.perf_counter() - started
            assert spans == []
        torch.accelerator.synchronize()
        waited = time.perf_counter() - started
    assert min(waited - launched, begin.elapsed_time(end) / 1e3) >= KERNELS * SLOWER
    # kernels are watched in the order in which they ran
    assert [span.name for span in spans] == ["aten.add.out"] * KERNELS
    assert all(span.launched <= span.begin <= span.end - SLOWER for span in spans)
    assert all(a.end <= b.begin and a.launched <= b.launched for a, b in itertools.pairwise(spans))


@scenario
def events_that_measure_no_time_say_so():
    end = torch.Event(enable_timing=True)
    assert "enable_timing=True" in refusal(lambda: torch.Event().elapsed_time(end))
    assert "must be completed" in refusal(lambda: torch.Event(enable_timing=True).elapsed_time(end))


@scenario
def an_event_orders_two_streams():
    """Without it the second stream goes on by itself and sees old values, while the first is stopped."""
    first, second = torch.accelerator.current_stream(), torch.Stream()
    x = torch.ones(3, device="sim")
    first.synchronize()
    with sim.hold():
        x.add_(1)
        event = first.record_event()
        with second:
            assert torch.accelerator.current_stream() == second
            assert (x * 1).tolist() == [1.0] * 3
            second.wait_event(event)
            late = x * 1
            assert not second.query()
    with second:
        assert late.tolist() == [2.0] * 3
    assert torch.accelerator.current_stream() == first


@scenario
def memory_is_counted_as_the_host_takes_and_drops_it():
    """4,000 bytes take 4,096; kernels that still wait count for nothing."""
    api = torch.accelerator
    gc.collect()
    api.synchronize()
    api.empty_cache()
    api.reset_peak_memory_stats()
    before, reserved = api.memory_allocated(), api.memory_reserved()
    with sim.hold():
        x = torch.empty(CROWD, device="sim")
        y = x + 1
        assert api.memory_allocated() - before == 8192
        del x  # although the kernel that reads it has not run
        assert (api.memory_allocated() - before, api.max_memory_allocated() - before) == (4096, 8192)
    del y
    assert (api.memory_allocated() - before, api.memory_reserved() - reserved) == (0, 8192)
    api.empty_cache()
    assert api.memory_reserved() == reserved
    assert torch.sim.max_memory_allocated() == api.max_memory_allocated()


def read_after_reuse(record):
    """Return the values that another stream reads in memory that its owner has freed, and those of the next owner."""
    second = torch.Stream()
    x = torch.full((CROWD,), 1.0, device="sim")
    torch.accelerator.synchronize()
    with sim.hold(second):
        with second:
            late = x * 1
        if record:
            x.record_stream(second)
        del x
        y = torch.full((CROWD,), 7.0, device="sim")
        torch.accelerator.current_stream().synchronize()
    second.synchronize()
    return late.unique().tolist(), y.unique().tolist()


@scenario
def freed_memory_is_overwritten_under_another_streams_hands_unless_that_is_recorded():
    assert read_after_reuse(record=False) == ([7.0], [7.0])
    assert read_after_reuse(record=True) == ([1.0], [7.0])


@scenario
def torch_finds_the_accelerator_and_its_module():
    x, api = torch.ones(2, device="sim"), torch.accelerator
    assert (str(api.current_accelerator()), api.device_count(), api.current_device_index()) == ("sim", 1, 0)
    assert api.is_available()
    assert torch.get_device_module(x.device) is torch.sim
    assert (str(x.device), x.is_cuda) == ("sim:0", False)
    assert torch.get_device_module("sim").get_device_name(x.device) == "stand-in accelerator"


@scenario
def tensors_of_two_devices_are_refused():
    here, there = torch.ones(2, 2), torch.ones(2, 2, device="sim")
    for call in (
        lambda: here + there,
        lambda: there @ here,
        lambda: there.add_(here),
        lambda: torch.cat([there, here]),
        lambda: nn.Linear(2, 2)(there),
        lambda: nn.Linear(2, 2).to("sim")(here),
        lambda: nn.Embedding(2, 2).to("sim")(torch.tensor([1])),
        lambda: F.cross_entropy(there, torch.tensor([0, 1])),
        lambda: torch.add(there, there, out=here),
        lambda: torch.zeros(()).add_(there.sum()),
    ):
        assert refusal(call).startswith("RuntimeError: Expected all tensors to be on the same device, but found")
    assert refusal(there.numpy).startswith("TypeError: can't convert sim:0 device type tensor to numpy")


@scenario
def numbers_and_indices_of_the_cpu_are_taken():
    there = torch.ones(2, 2, device="sim")
    assert (there * torch.tensor(3.0)).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert there[torch.tensor([1])].tolist() == [[1.0, 1.0]]


@scenario
def the_error_of_a_kernel_is_raised_once_by_the_call_that_waits():
    with sim.hold():
        F.embedding(torch.tensor([9], device="sim"), torch.ones(2, 2, device="sim"))
    error = refusal(torch.accelerator.synchronize)
    assert error.startswith("RuntimeError: sim error: IndexError: index out of range")
    assert refusal(torch.accelerator.synchronize) == "accepted"


@scenario
def a_wait_for_the_device_waits_for_all_streams_though_one_has_failed():
    second, x = torch.Stream(), torch.ones(3, device="sim")
    torch.accelerator.synchronize()
    F.embedding(torch.tensor([9], device="sim"), torch.ones(2, 2, device="sim"))
    with sim.slower(0.3), second:
        x = x + 1
        last = second.record_event()
    assert refusal(torch.accelerator.synchronize).startswith("RuntimeError")
    assert last.query()


@scenario
def the_error_of_a_hook_ends_backward_and_not_the_process():
    """It may be the hook of a tensor, or of a parameter's gradient."""
    x = torch.ones(2, device="sim", requires_grad=True)
    for register in (x.register_hook, x.register_post_accumulate_grad_hook):
        handle = register(lambda _: {}["label"])
        assert refusal((x * 2).sum().backward, KeyError) == "KeyError: 'label'"
        handle.remove()
        x.grad = None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


@scenario
def values_that_the_host_reads_have_been_computed():
    x = torch.tensor([3.0, 0.0, 5.0], device="sim")
    with sim.slower(SLOWER):
        y = x + 1
        assert y.sum().item() == 11.0
        assert torch.nonzero(x).flatten().tolist() == [0, 2]
        assert x[x > 1].tolist() == [3.0, 5.0]
        assert y.cpu().tolist() == [4.0, 1.0, 6.0]
        assert bool(y[0] > 3)
    z = torch.empty(0, device="sim")
    torch.add(x, 1, out=z)
    assert z.tolist() == [4.0, 1.0, 6.0]


@scenario
def a_copy_to_the_cpu_without_blocking_is_read_too_early():
    x = torch.ones(2, device="sim")
    with sim.hold():
        host = x.to("cpu", non_blocking=True)
        host.zero_()  # whatever was there
        assert host.tolist() == [0.0, 0.0]
    torch.accelerator.synchronize()
    assert host.tolist() == [1.0, 1.0]


class Net(nn.Module):
    """A bit of all that the book's models are made of."""

    def __init__(self):
        super().__init__()
        self.embed, self.conv, self.norm = nn.Embedding(11, 8), nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.layer, self.lower, self.out = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        h = self.norm(self.conv(self.embed(tokens).transpose(1, 2))).transpose(1, 2)
        return self.out(F.gelu(self.lower(self.layer(h))))


def train(where):
    torch.manual_seed(0)
    net = Net().to(where)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(4):
        tokens = torch.randint(11, (5, 7), generator=torch.Generator().manual_seed(step)).to(where)
        loss = F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu().numpy() for p in (*net.parameters(), *net.buffers())]


@scenario
def training_goes_as_on_the_cpu():
    """Not to the bit: for some operations torch has another way on the CPU."""
    (losses, cpu), (again, on_sim) = train("cpu"), train("sim")
    assert again == pytest.approx(losses, rel=1e-6)
    assert losses[-1] < losses[0]
    assert all(np.abs(a - b).max() <= 1e-5 * max(np.abs(a).max(), 1) for a, b in zip(cpu, on_sim, strict=True))


def attention(where):
    """Return the gradient of attention, which the CPU computes by another algorithm."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 4, 8).to(where).requires_grad_() for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum().backward()
    return q.grad.cpu().numpy()


@scenario
def attention_has_the_gradients_of_the_cpu():
    cpu = attention("cpu")
    assert np.abs(cpu - attention("sim")).max() <= 1e-5 * np.abs(cpu).max()


@scenario
def a_layer_norm_in_bf16_has_the_gradients_of_the_cpu():
    gradients = []
    for where in ("cpu", "sim"):
        layer = nn.LayerNorm(8, device=where, dtype=torch.bfloat16)
        x = torch.arange(16.0).view(2, 8).square().to(where, torch.bfloat16).requires_grad_()
        layer(x).relu().square().sum().backward()
        gradients.append([g.float().cpu().numpy() for g in (x.grad, layer.weight.grad, layer.bias.grad)])
    for cpu, found in zip(*gradients, strict=True):
        assert np.abs(found - cpu).max() <= 2**-7 * np.abs(cpu).max()


@scenario
def a_module_keeps_its_parameters_and_files_bring_them_back():
    net = Net()
    weight = net.out.weight
    net.to("sim")
    assert net.out.weight is weight
    assert net.embed.weight is weight
    assert weight.device.type == "sim"
    file, loaded = io.BytesIO(), []
    torch.save({"net": net.state_dict(), "part": weight.detach()[1:]}, file)
    for where in (None, "cpu", "sim"):
        file.seek(0)
        loaded.append(torch.load(file, map_location=where, weights_only=True))
    assert [state["net"]["embed.weight"].device.type for state in loaded] == ["sim", "cpu", "sim"]
    assert all(torch.equal(state["part"].cpu(), weight.detach().cpu()[1:]) for state in loaded)
    assert loaded[0]["part"].untyped_storage().nbytes() == 4 * 11 * 8  # the file has it once
    again = Net().to("sim")
    lower = again.lower.weight
    again.load_state_dict(loaded[1]["net"])
    assert again.lower.weight is lower
    assert torch.equal(lower, net.lower.weight)


@scenario
def autocast_computes_products_in_the_low_dtype_alone():
    layer, x = nn.Linear(4, 4).to("sim"), torch.randn(2, 4, device="sim")
    with torch.autocast("sim", torch.bfloat16):
        low = layer(x)
        high = low.softmax(-1)
    low.float().sum().backward()
    assert (low.dtype, high.dtype, layer.weight.grad.dtype) == (torch.bfloat16, torch.float32, torch.float32)


@scenario
def random_numbers_are_the_devices_own_and_can_be_brought_back():
    torch.manual_seed(3)
    host = torch.randn(2).tolist()
    torch.manual_seed(3)
    first, state = torch.randn(4, device="sim").tolist(), torch.sim.get_rng_state()
    second = F.dropout(torch.ones(64, device="sim")).tolist()
    assert torch.randn(2).tolist() == host  # which nothing on the device has disturbed
    torch.sim.set_rng_state(state)
    assert F.dropout(torch.ones(64, device="sim")).tolist() == second
    torch.manual_seed(3)
    assert torch.randn(4, device="sim").tolist() == first != second[:4]


@scenario
def a_second_installation_does_nothing():
    sim.install()
    work_is_queued_and_its_values_come_later()


failures, test_scenario = scenario.tests(1)
