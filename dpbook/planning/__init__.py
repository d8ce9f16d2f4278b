"""Plans for a cluster: memory per rank, step time, stragglers, failures, and the limits of data parallelism."""

from dpbook.planning.cluster import ACCELERATORS, LINKS, NVLS_SHARE, Accelerator, Algorithm, Cluster, Mesh, all_reduce
from dpbook.planning.job import (
    RECIPES,
    STAGES,
    Job,
    Memory,
    Recipe,
    activation_bytes,
    memory_per_rank,
    sent_per_rank,
    smallest_world_that_fits,
)
from dpbook.planning.scaling import (
    LLAMA_3,
    Interruptions,
    PredictedStep,
    Recovery,
    Shares,
    best_cap,
    predict,
    strong,
    wall,
    weak,
)
from dpbook.planning.stragglers import (
    BackupWorkers,
    Estimate,
    Exponential,
    Normal,
    Pareto,
    Pauses,
    StepTimes,
    Uniform,
    backup_workers,
    local_steps,
    simulate_wait,
    slowest,
)
from dpbook.planning.transformer_models import (
    MODELS,
    Transformer,
    count_parameters,
    low_rank_adapters,
    operations_per_token,
    utilisation,
)
