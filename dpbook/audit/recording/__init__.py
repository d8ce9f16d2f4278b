"""In a rank: what a training script does is written into a journal, through hooks. The script itself is not changed.

Each module watches one thing: modules, loaders, backward, updates, calls. What they write is in `dpbook.audit.journal`.
"""

from typing import TYPE_CHECKING

from dpbook.audit.recording.recorder import Recorder, Wanted
from dpbook.core import lazily

if TYPE_CHECKING:
    from dpbook.audit.recording.installation import watched
    from dpbook.audit.recording.modules import averages, owners, syncs

__getattr__ = lazily(__name__, averages="modules", owners="modules", syncs="modules", watched="installation")
