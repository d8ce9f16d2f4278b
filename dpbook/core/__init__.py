"""Common basis of all folders: errors, quantities in words, files, this machine, the checkout, the palette."""

from dpbook.core import checkout, files, machine, palette
from dpbook.core.doors import lazy_exports
from dpbook.core.errors import (
    Deadlock,
    DpbookError,
    InvalidArgument,
    MessageError,
    RankFailed,
    ReplicasDiffer,
    ScheduleError,
    UnitsError,
    UnusedParameters,
    check_each,
    check_float,
    check_int,
    check_one_of,
    check_type,
)
from dpbook.core.files import DATA, PACKAGE, mathml, parse, render_page, temporary_folder, try_lock, write_atomically
from dpbook.core.machine import Gpu
from dpbook.core.processes import (
    INSTALLED,
    PARENT,
    call_after_import,
    end_with_parent,
    exit_at_once,
    exit_without_teardown,
    handling_signals,
    import_without_collection,
    own_modules,
    pickle_by_value,
    print_error_and_exit,
    rebind_names,
    run_probe,
)
from dpbook.core.quantities import (
    aligned,
    bytes_in_words,
    gibibytes,
    in_binary,
    in_words,
    listed,
    milliseconds,
    plural,
    ranks_in_words,
    shortened,
)
