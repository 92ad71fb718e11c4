"""What must not be shown of a configuration: values of keys that are named like secrets, and secrets within values.

A setting is shown on the page, over REST (the token that only looks is enough for it), and in archived views. Where it
is in doubt it is hidden: to see what was hidden without need costs a look into the program.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "******"

_WORDS = (  # in a name without its punctuation
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "signature",
    "apikey",
    "accesskey",
    "accountkey",
    "privatekey",
    "sharedkey",
    "encryptionkey",
    "keystorekey",
    "connectionstring",
    "userinfo",
    "authorization",
    "jaas",
    "otelheaders",
)
_WHOLE_WORDS = frozenset({"pass", "pwd", "sas", "sig"})  # which are parts of other words: "sasl", "assign"
_PUNCTUATION = re.compile(r"[^a-z0-9]+")

_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
# `scheme://name:password@`. A password may have a slash that is not escaped: of AWS every other one has. Digits up to a
# slash are a port.
_LOGIN = re.compile(
    r"(?<![\w+.-])(?P<scheme>[\w+.-]+)://"
    r"(?:(?P<name>[^\s/?#@:]*):(?!\d+(?:[/?#,;\s]|$))(?:[^\s/?#]*|(?:(?!://)\S)+?)|(?P<alone>[^\s/?#:]+))@"
)
_NAMES_ARE_SECRET = ("s3", "s3a", "s3n", "http", "https")  # an access key, a token; elsewhere a user or a container
_NAME = re.compile(r"""(?<![\w.%-])(?P<name>[\w.%-]+)["']?\s*[=:](?!//)\s*""")
_VALUE = re.compile(r"""(?:"[^"]*"|'[^']*'|(?:(?:basic|bearer)\s+)?[^\s,;&]+)""", re.IGNORECASE)
_VALUE_IN_QUERY = re.compile(r"[^\s&#]*")


def looks_secret(key: str) -> bool:
    """The value of such a key is not to be shown."""
    parts = _PUNCTUATION.split(key.lower())
    joined = "".join(parts)
    return any(word in joined for word in _WORDS) or not _WHOLE_WORDS.isdisjoint(parts)


def shown(key: str, value: str) -> str:
    """The value of a setting, for everybody who may look."""
    return HIDDEN if looks_secret(key) else without_secrets(value)


def without_secrets(text: str) -> str:
    """The text with HIDDEN in place of what looks like a secret in it: logins in addresses, values of `name=value` and
    `name: value` whose names look secret, private keys. A location stays one (see `StorageLocation.parse`)."""
    if _PRIVATE_KEY.search(text):
        return HIDDEN
    return _without_values(_LOGIN.sub(_without_login, text))


def _without_login(match: re.Match[str]) -> str:
    scheme, name, alone = match["scheme"], match["name"], match["alone"]
    if scheme.lower() in _NAMES_ARE_SECRET:
        return f"{scheme}://{HIDDEN}@"
    return match[0] if alone is not None else f"{scheme}://{name}:{HIDDEN}@"


def _without_values(text: str) -> str:
    kept, at, searched = [], 0, 0
    while (named := _NAME.search(text, searched)) is not None:
        searched = named.end()
        if looks_secret(unquote(named["name"])):
            in_query = text[: named.start()].endswith(("?", "&"))
            value = (_VALUE_IN_QUERY if in_query else _VALUE).match(text, searched)
            if value is not None and value[0]:
                kept += [text[at:searched], HIDDEN]
                at = searched = value.end()
    return "".join((*kept, text[at:]))
