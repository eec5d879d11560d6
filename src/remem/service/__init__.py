"""The memory as a service: durable streams, each event exactly once, a fixed-size memory per stream.

`MemoryEngine` is the way in; `Network` and `Store` are what it stands on. Torch is needed once a model is opened.
"""

from __future__ import annotations

from remem.service.engine import DEFAULT_TENANT, MemoryEngine
from remem.service.errors import CODES, ServiceError
from remem.service.events import FLUSH, Event
from remem.service.limits import Limits, StreamKey
from remem.service.network import Network
from remem.service.results import Answered, Appended, Inspected, Listed, Problem, Verified
from remem.service.store import Deleted, Store

__all__ = [
    "CODES",
    "DEFAULT_TENANT",
    "FLUSH",
    "Answered",
    "Appended",
    "Deleted",
    "Event",
    "Inspected",
    "Limits",
    "Listed",
    "MemoryEngine",
    "Network",
    "Problem",
    "ServiceError",
    "Store",
    "StreamKey",
    "Verified",
]
