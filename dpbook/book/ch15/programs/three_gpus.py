from dpbook.core import Gpu
from dpbook.runs.launch import preflight

gpus = [Gpu("H100", 80 * 2**30) for _ in range(3)]
visible = gpus
for finding in preflight(3, gpus=visible):
    print(finding)
