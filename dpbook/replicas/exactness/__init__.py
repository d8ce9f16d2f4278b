"""How exact a gradient is: distances in ulps, bounds of rounding, a verdict."""

from dpbook.replicas.exactness.verdict import Drift, Exactness, compare, drift, ulp_distance
