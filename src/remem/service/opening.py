"""From what a person writes, a path or an address and a model's folder, to a store and a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from remem.errors import BadInput
from remem.service.errors import StoreUnavailable
from remem.service.network import Network
from remem.service.no_model import NoModel
from remem.service.store import Durability, Store
from remem.service.stores.memory import MemoryStore

if TYPE_CHECKING:
    from remem.bundle import Bundle

_REDIS = ("redis://", "rediss://", "unix://")


def open_store(store: str | Path | Store, *, durability: Durability = "fsync", read_only: bool = False) -> Store:
    """A store file, `redis://…`, `:memory:`; a store is returned as it is."""
    if not isinstance(store, str | Path):
        return store
    if str(store) == ":memory:":
        return MemoryStore()
    if str(store).startswith(_REDIS):
        from remem.service.stores.redis import RedisStore

        return RedisStore(str(store), durability=durability, read_only=read_only)
    from remem.service.stores.sqlite import SqliteStore

    _refuse_folder(store)
    return SqliteStore(store, durability=durability, read_only=read_only)


def shown_store(store: str) -> str:
    """A store as a message may name it: an address without user, password and options."""
    if not store.startswith(_REDIS):
        return store
    parts = urlsplit(store)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def require_store(store: str | Path) -> None:
    """Refuse a path where there is no store, where opening for writing would make one."""
    if str(store).startswith(_REDIS):
        return
    _refuse_folder(store)
    if not Path(store).is_file():
        raise StoreUnavailable(f"{store} does not exist; an append creates it.")


def _refuse_folder(store: str | Path) -> None:
    """Before a lock is left beside it."""
    if Path(store).is_dir():
        raise BadInput(f"{store} is a folder; expected the file of a store, such as {Path(store) / 'memories.db'}.")


def open_network(model: str | Path | Bundle | Network | None) -> Network:
    """The saved model in a folder, or a bundle, behind the engine's interface; a network is returned as it is."""
    if model is None:
        return NoModel()
    if not isinstance(model, str | Path) and hasattr(model, "fold"):
        return cast(Network, model)
    from remem.service.bundle_network import BundleNetwork

    return BundleNetwork.open(model)
