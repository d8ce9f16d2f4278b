"""Run a module or a script, as `python` would: each rank is alone on its machine, with one stand-in accelerator."""

import os
import runpy
import sys

from dpbook.book import sim

if __name__ == "__main__":
    sim.install()
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
