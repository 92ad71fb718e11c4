"""Where a checkpoint directory lies: a URI and the options to reach it. Plain data that is shipped to the workers; each
process makes its own file system of it (see `files.open_files`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tidegate.common.errors import ConfigurationError
from tidegate.common.secrets import HIDDEN

_S3_SCHEMES = ("s3", "s3a", "s3n")
_OTHER_SCHEMES = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_SECRETS = ("access_key", "secret_key", "session_token")
_PERMISSIONS = "permissions"
_S3_OPTIONS = ("endpoint_override", "region", "scheme", "anonymous", *_SECRETS)


@dataclass(frozen=True)
class StorageLocation:
    """A directory. Make one with `parse`."""

    uri: str  # without query and without a trailing slash; "file:///..." for a local path
    options: tuple[tuple[str, str], ...] = ()  # sorted

    @staticmethod
    def parse(uri: str, options: Mapping[str, str] | None = None) -> StorageLocation:
        """From a plain path or a URI. Options of S3 (endpoint_override, region, scheme, anonymous, access_key,
        secret_key, session_token) come from `options`, from the URI's query, and, for endpoint and region, from the
        environment variables of the AWS tools, in this order: so that workers with another environment find the same
        place. Of a URI as it is shown, with its secrets hidden, the place is known and the secrets are not."""
        if not isinstance(uri, str) or not uri.strip():
            raise ConfigurationError("the checkpoint directory is empty; give a path or a URI such as s3://bucket/path")
        parts = urlsplit(uri)
        if "://" not in uri and not uri.startswith("file:"):
            path = os.path.abspath(os.path.expanduser(uri))
            return StorageLocation("file://" + quote(path))
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise ConfigurationError(
                    f"'{uri}' names the host '{parts.netloc}'; a local URI has three slashes: file:///path"
                )
            return StorageLocation("file://" + quote(os.path.normpath(unquote(parts.path))))
        if parts.scheme in _S3_SCHEMES:
            return _s3_location(uri, dict(options or {}))
        if parts.scheme in _OTHER_SCHEMES:
            merged = _in_query(parts.query) | dict(options or {})
            return StorageLocation(f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/"), _sorted(merged))
        raise ConfigurationError(
            f"'{uri}': storage of the kind '{parts.scheme}' is not known; use a local path, file, s3, gs, abfs or hdfs"
        )

    def with_permissions(self, permissions: str) -> StorageLocation:
        """Who may read what is made here (`files.PERMISSIONS`); only for local paths, other stores have rules of their
        own."""
        return StorageLocation(self.uri, ((_PERMISSIONS, permissions),)) if self.is_local else self

    @property
    def permissions(self) -> str | None:
        return dict(self.options).get(_PERMISSIONS)

    @property
    def secrets(self) -> dict[str, str]:
        """Those of its options that are not shown."""
        return {name: value for name, value in self.options if name in _SECRETS}

    @property
    def scheme(self) -> str:
        return urlsplit(self.uri).scheme

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def local_path(self) -> str:
        return unquote(urlsplit(self.uri).path)

    def child(self, *names: str) -> StorageLocation:
        return StorageLocation("/".join([self.uri, *map(quote, names)]), self.options)

    def parent(self) -> StorageLocation:
        return StorageLocation(self.uri.rpartition("/")[0], self.options)

    @property
    def name(self) -> str:
        return unquote(self.uri.rpartition("/")[2])

    def __str__(self) -> str:
        """`parse` of it gives the same location again, except for secrets, which are left out. A local one is a
        path."""
        if self.is_local:
            return self.local_path
        shown = [(name, value) for name, value in self.options if name not in _SECRETS]
        return f"{self.uri}?{urlencode(shown)}" if shown else self.uri

    __repr__ = __str__


def beside(uri: str, known: Mapping[str, str] | None) -> StorageLocation:
    """The place `uri`, which was noted without secrets, reached with the options of a place that is `known`: its own
    ones win, and they count only on the same kind of storage."""
    location = StorageLocation.parse(uri)
    if known and location.scheme == "s3":
        return StorageLocation.parse(uri, {**known, **dict(location.options)})
    return location


def below(uri: str, name: str) -> str:
    """`name` in the directory `uri`, as text. The options in the query of a URI stay behind it, secrets too."""
    place, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


def absolute(uri: str) -> str:
    """The same place, for a process that runs in another directory. Checked; secrets in it stay in it."""
    location = StorageLocation.parse(uri)
    return location.local_path if location.is_local else uri


def _s3_location(uri: str, options: dict[str, str]) -> StorageLocation:
    parts = urlsplit(uri)
    if not parts.hostname:
        raise ConfigurationError(f"'{uri}' has no bucket; write s3://bucket/path")
    bucket = parts.netloc.rpartition("@")[2]
    found = _in_query(parts.query) | options
    if parts.username and parts.password:
        found = {"access_key": unquote(parts.username), "secret_key": unquote(parts.password)} | found
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        found.setdefault("endpoint_override", endpoint)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        found.setdefault("region", region)
    unknown = sorted(set(found) - set(_S3_OPTIONS))
    if unknown:
        raise ConfigurationError(
            f"s3://{bucket}{parts.path}: unknown option {', '.join(unknown)}; known are {', '.join(_S3_OPTIONS)}"
        )
    return StorageLocation(f"s3://{bucket}{parts.path}".rstrip("/"), _sorted(found))


def _in_query(query: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(query) if value != HIDDEN}


def _sorted(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(options.items()))
