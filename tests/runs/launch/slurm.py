"""Replacements for the commands of a cluster that docs/slurm.sbatch uses: every node is this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dpbook.core import checkout

COMMANDS = {
    "scontrol": """if [[ $1 == requeue ]]; then echo "$2" >> requeued; else printf "127.0.0.1\\nlocalhost\\n"; fi""",
    "srun": """while [[ $1 == --* ]]; do shift; done
for ((node = 0; node < SLURM_NNODES; node++)); do "$@" & nodes="${nodes:-} $!"; done
trap 'kill -USR1 $nodes; noticed=yes' USR1
for node in $nodes; do
    while noticed=; ended=0; wait $node || ended=$?; [[ $noticed ]]; do :; done
    if ((ended > ${worst:-0})); then worst=$ended; fi
done
exit ${worst:-0}""",
    "dpbook": 'shift; exec "$PYTHON" -m dpbook launch --nproc 1 "$@"',
}
"""srun runs a command on each node, passes signals on, and ends with the greatest status of them."""


def submit(folder: Path, nodes: int, *arguments: str) -> subprocess.Popen[str]:
    """Begin the job in ``folder``; every node has one rank."""
    for name, body in COMMANDS.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\nset -eu\n{body}\n")
        path.chmod(0o755)
    env = {
        **os.environ,
        "SLURM_JOB_NODELIST": f"node[1-{nodes}]", "SLURM_NNODES": str(nodes), "SLURM_JOB_ID": str(os.getpid()),
        "PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": sys.executable, "DPBOOK": str(folder / "dpbook"),
        "PYTHONPATH": str(checkout.root()),
    }  # fmt: skip
    command = [str(checkout.root() / "docs/slurm.sbatch"), *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def requeued(folder: Path) -> list[str]:
    """Return the jobs that were queued again."""
    path = folder / "requeued"
    return path.read_text().split() if path.exists() else []
