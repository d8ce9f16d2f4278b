"""Print constraints that pin every direct dependency to the lower end of its range in pyproject.toml.

python3 tools/lowest.py > lowest.txt && make test CONSTRAINTS=lowest.txt
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
for line in sum(project["optional-dependencies"].values(), project["dependencies"]):
    print(re.sub(">=", "==", line, count=1))
