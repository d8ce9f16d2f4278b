"""Methods that spend exactness: they send fewer bits, fewer numbers, less often or later, or do without a rank."""

from dpbook.replicas.inexact.asynchronous import Asynchronous, Update, updates
from dpbook.replicas.inexact.collective import all_gather, all_reduce
from dpbook.replicas.inexact.compression import Gathered, Sign, TopK
from dpbook.replicas.inexact.diloco import DiLoCo
from dpbook.replicas.inexact.distance import relative_distance
from dpbook.replicas.inexact.feedback import Compressed, Exchange, Exchanged
from dpbook.replicas.inexact.local import LocalSGD
from dpbook.replicas.inexact.low_precision import LowPrecision
from dpbook.replicas.inexact.missing import Backup, Lost, all_reduce_among
from dpbook.replicas.inexact.parabolas import Parabolas, largest_stable_rate, local_fixed_point
from dpbook.replicas.inexact.powersgd import LowRank
from dpbook.replicas.inexact.precision import FORMATS, Format, bf16
from dpbook.replicas.inexact.stale import Stale
