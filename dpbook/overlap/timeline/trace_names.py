"""What the names in torch's traces mean: all that is known by its name is known from here."""

NCCL = ("ncclDevKernel", "ncclKernel", "ncclSymk", "ncclSymDevKernel")
"""How kernels of NCCL begin: those of its releases from 2.19 on, those before, and since 2.27 those on memory that all
GPUs of a node have at the same address."""
GLOO = "gloo:"
"""How the annotation of a collective on gloo's threads begins."""
COLLECTIVE = "c10d::"
"""How the operator begins that hands a collective over."""
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel", "hipExtLaunchKernel", "hipModuleLaunchKernel")
"""How calls begin that hand a kernel to a device; what follows says in which way."""
BOOKKEEPING = ("autograd::", "torch::autograd::")
"""Namespaces of operators that hold others, or only pass gradients on."""
HOST_AND_DEVICE = ("HtoD", "DtoH")
"""In the name of a copy between them."""
STEP = "ProfilerStep#"
"""What the profiler calls a step, before its number."""
PHASES = {
    "DistributedDataParallel.forward": "forward",
    "autograd::engine::evaluate_function": "backward",
    "Optimizer.step": "optimizer",
}
"""How the names of events begin that hold a phase."""
RECORDED = "Sequence number"
"""What the profiler writes to each operator that autograd records for a backward: outside of one it is forward."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what runs on a device."""
CALLS = ("cuda_runtime", "cuda_driver")
"""Categories of calls to a device; those of AMD's are called so too."""
