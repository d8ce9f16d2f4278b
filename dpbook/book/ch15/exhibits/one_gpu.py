from dpbook.core import Gpu
from dpbook.runs.launch import preflight

gpus = [Gpu("H100", 80 * 2**30) for _ in range(3)]
visible = gpus[:1]  # CUDA_VISIBLE_DEVICES=0, left over from an experiment
for finding in preflight(3, gpus=visible):
    print(finding)
