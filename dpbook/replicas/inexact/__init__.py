"""Methods that spend exactness: fewer bits, fewer numbers."""

from dpbook.replicas.inexact.collective import all_gather, all_reduce
from dpbook.replicas.inexact.compression import Gathered, Sign, TopK
from dpbook.replicas.inexact.distance import relative_distance
from dpbook.replicas.inexact.feedback import Compressed, Exchange, Exchanged
from dpbook.replicas.inexact.low_precision import LowPrecision
from dpbook.replicas.inexact.powersgd import LowRank
from dpbook.replicas.inexact.precision import FORMATS, Format, bf16
