#!/bin/sh
# What a new container runs once: torch without CUDA, whose wheels uv knows where to find, what developers need, and the
# reader's copy of the notebooks.
set -eu
python3 -m venv .venv
python3 -m pip install --quiet uv
python3 -m uv pip install --python .venv --torch-backend cpu --constraint constraints.txt torch
tools/venv.sh dev
.venv/bin/python -m dpbook lab --copy-only
