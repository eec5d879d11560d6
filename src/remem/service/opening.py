"""From what a person writes, a path or an address and a model's folder, to a store and a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from remem.service.network import Network
from remem.service.store import Durability, Store
from remem.service.stores.memory import MemoryStore

if TYPE_CHECKING:
    from remem.bundle import Bundle


def open_store(store: str | Path | Store, *, durability: Durability = "fsync", read_only: bool = False) -> Store:
    """A store file, `redis://…`, `:memory:`; a store is returned as it is."""
    if not isinstance(store, str | Path):
        return store
    if str(store) == ":memory:":
        return MemoryStore()
    if str(store).startswith(("redis://", "rediss://", "unix://")):
        from remem.service.stores.redis import RedisStore

        return RedisStore(str(store), durability=durability, read_only=read_only)
    from remem.service.stores.sqlite import SqliteStore

    return SqliteStore(store, durability=durability, read_only=read_only)


def open_network(model: str | Path | Bundle | Network) -> Network:
    """The saved model in a folder, or a bundle, behind the engine's interface; a network is returned as it is."""
    if not isinstance(model, str | Path) and hasattr(model, "fold"):
        return cast(Network, model)
    from remem.service.bundle_network import BundleNetwork

    return BundleNetwork.open(model)
