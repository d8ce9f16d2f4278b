import sys

from dpbook.runs.launch import check_peers

switch = "print('0 1 right', flush=True); print('0 2 right'); print('1 2 right')"
for finding in check_peers((sys.executable, "-c", switch), seconds=5):
    print(finding)
