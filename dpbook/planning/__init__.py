"""What a cluster will do: memory per rank, step time, stragglers, failures, where plain data parallelism stops."""

from dpbook.planning.estimates import Estimate
from dpbook.planning.failures import LLAMA_3, Interruptions, Recovery, Shares
from dpbook.planning.hardware import ACCELERATORS, LINKS, Accelerator, Cluster
from dpbook.planning.job import Job
from dpbook.planning.memory import (
    RECIPES,
    STAGES,
    Memory,
    Recipe,
    activation_bytes,
    memory_per_rank,
    sent_per_rank,
    smallest_world_that_fits,
)
from dpbook.planning.mesh import Mesh
from dpbook.planning.mfu import operations_per_token, utilisation
from dpbook.planning.models import MODELS, Transformer, count_parameters, low_rank_adapters
from dpbook.planning.scaling import Step, best_cap, predict, strong, wall, weak
from dpbook.planning.step_times import Exponential, Normal, Pareto, Pauses, StepTimes, Uniform
from dpbook.planning.stragglers import Backed, backup_workers, local_steps, simulate_wait, slowest
from dpbook.planning.sync import NVLS_SHARE, Algorithm, all_reduce
