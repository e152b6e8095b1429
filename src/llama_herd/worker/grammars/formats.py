"""Formats of JSON Schema: what their texts match, where validators assert anything of them."""

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
)
_DATE = f"(?:{_YEAR}-(?:{_DAY})|{_LEAP_YEAR}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR})"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        *(f"(?:{_GROUP}:){{{left}}}(?::{_GROUP}){{1,{7 - left}}}" for left in range(1, 7)),
        f"(?:{_GROUP}:){{1,7}}:",
        f":(?::{_GROUP}){{1,7}}",
        "::",
    ]
)
_LABEL = "[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*"
_HOSTNAME = (rf"{_LABEL}(?:\.{_LABEL})*", r"[^.]{1,63}(?:\.[^.]{1,63})*", ".{1,253}")
# One expression, since llguidance gives up to find out whether any text matches many. So it counts: at most
# 64 characters, then four names of 43, then a domain of 13, as all top-level ones are, are 254.
_ATOM, _ALNUM = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]", "[a-zA-Z0-9]"
_HOST = rf"(?:{_ALNUM}{{1,43}}|{_ALNUM}(?:-?{_ALNUM}){{0,21}})\."
_EMAIL = rf"(?:{_ATOM}{{1,64}}|{_ATOM}(?:\.?{_ATOM}){{0,31}})@(?:{_HOST}){{1,4}}[a-zA-Z]{{2,13}}"
_COUNT = "[0-9]{1,6}"  # of more, Python has no duration
_DURATION_TIME = f"T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_DURATION_DATE = f"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
# As decoders take it that look at the last bits, too.
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"
_SAFE = r"[a-zA-Z0-9\-._~!$&'()*+,;=:@]"
_ESCAPED = "%[0-9a-fA-F]{2}"
_SEGMENT = f"(?:{_SAFE}|{_ESCAPED})"

#: Each format's patterns, of which a text matches all.
FORMATS: dict[str, tuple[str, ...]] = {
    "date": (_DATE,),
    "time": (_TIME,),
    "date-time": (f"{_DATE}T{_TIME}",),
    "duration": (f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|{_COUNT}W)",),
    "email": (_EMAIL,),
    "byte": (_BASE64,),
    "hostname": _HOSTNAME,
    "ipv4": (_IPV4,),
    "ipv6": (_IPV6,),
    "uuid": ("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",),
    "uri": (
        rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?://(?:{_LABEL}(?:\.{_LABEL})*|{_IPV4}|\[(?:{_IPV6})\])(?::[0-9]{{1,4}})?"
        rf"(?:/{_SEGMENT}*)*|/?{_SEGMENT}+(?:/{_SEGMENT}*)*)"
        rf"(?:\?(?:{_SEGMENT}|[/?])*)?(?:\#(?:{_SEGMENT}|[/?])*)?",
    ),
}

for _version in range(1, 9):
    FORMATS[f"uuid{_version}"] = (
        f"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{_version}[0-9a-fA-F]{{3}}-[89abAB][0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}",
    )

#: The patterns of each `contentEncoding`, which validators of draft 7 assert.
ENCODINGS = {
    "base64": (_BASE64,),
    "base64url": (_BASE64.replace("+/", r"\-_"),),
    "base32": ("(?:[A-Z2-7]{8})*",),
    "base16": ("(?:[0-9a-fA-F]{2})*",),
}

#: Formats that validators assert, by a draft or, as ajv does, beyond, and of which no pattern is known here.
_ASSERTED = frozenset(
    {
        *("color", "host-name", "idn-email", "idn-hostname", "ip-address", "iri", "iri-reference"),
        *("iso-date-time", "iso-time", "json-pointer", "json-pointer-uri-fragment", "regex"),
        *("relative-json-pointer", "uri-reference", "uri-template", "url"),
    }
)


def is_annotation(name: str) -> bool:
    """Whether a format says nothing of a text to validators, as `password` and `path` do not."""
    return name not in FORMATS and name not in _ASSERTED


def format_patterns(name: str) -> tuple[str, ...]:
    """The patterns that a text of a format matches; none where it is an annotation.

    Raises ValueError, with the problem, for one that cannot be followed.
    """
    if name in _ASSERTED:
        raise ValueError("is not supported. Fix: leave it out, or say it by a pattern")
    return FORMATS.get(name, ())
