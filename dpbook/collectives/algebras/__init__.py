"""One interpreter of schedules, and the algebras that it runs on: simulation, verification, agreement of bits."""

from dpbook.collectives.algebras.simulation import check_buffers
