"""The door for archives: the one body that is no JSON, with a bound of its own. All else passes the guard as it is."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import Scope

from remem.server.guard import CALLER, Guard, require_scope
from remem.service.errors import TooLarge, UnsupportedType

ARCHIVE_TYPE = "application/octet-stream"
_PATH = re.compile(r"/v1/streams/[^/]+/memory")


class ArchiveGuard(Guard):
    """Lets in archives besides JSON, to where one is expected and from whom may bring one."""

    def _admit(self, scope: Scope) -> None:
        if scope["method"] != "PUT" or not _PATH.fullmatch(scope["path"]):
            super()._admit(scope)
            return
        headers = Headers(scope=scope)
        scope[CALLER] = caller = self._caller(headers)
        self._service.buckets.take(caller.tenant)
        require_scope(caller, "export")
        length, limit = headers.get("content-length", "0"), self._service.engine.limits.archive_bytes
        if not length.isdigit() or len(length) > 15 or int(length) > limit:
            raise TooLarge(f"The archive is longer than {limit} bytes.", limit="archive_bytes", most=limit)
        if headers.get("content-encoding", "identity") != "identity":
            raise UnsupportedType("The archive is compressed; send it as it is.")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != ARCHIVE_TYPE:
            raise UnsupportedType(f"The archive's content type is not {ARCHIVE_TYPE}.")
