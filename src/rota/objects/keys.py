"""Keys of objects, and the key space that runners may write to. Pure.

A runner's URL names `runner-staging/{jobId}/{n}` and nothing else. `n` is never used twice in a job's life, whatever
op, epoch or session it is for (the job's row counts it: `RunnerStore.next_staging`). So a URL that was minted once
can only ever write an object that was that op's, and that nobody reads any more when it is late.

Spec: runners, "Presigned URLs and object storage".
"""

import unicodedata
from typing import Final
from uuid import UUID

from rota.errors import ObjectError

STAGING: Final = "runner-staging"
VERIFYING: Final = "runner-verifying"
"""Where the verifier copies what it judges: no URL of a runner's has ever named it."""
KEY_BYTES_MAX: Final = 1024
"""S3's own limit."""


def check_key(key: str) -> str:
    """The key, if it is one that every store keeps apart from every other.

    Raises: ObjectError if it is empty, too long, or has empty parts, `.`, `..`, backslashes or control characters.
    """
    parts = key.split("/")
    if not key or len(key.encode(errors="surrogatepass")) > KEY_BYTES_MAX:
        raise ObjectError(f"A key of an object has 1 to {KEY_BYTES_MAX} bytes, and this one {len(key)} characters.")
    if any(part in {"", ".", ".."} for part in parts) or "\\" in key:
        raise ObjectError(f"The key {key[:200]!r} has an empty part, a dot part or a backslash: name it without.")
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in key):
        raise ObjectError("This key of an object has control characters: name it without.")
    return key


def check_final_key(key: str) -> str:
    """The key, if an output may be delivered there: to none that a runner's URL could name, or that is judged.

    Raises: ObjectError also as `check_key`.
    """
    if check_key(key).partition("/")[0] in {STAGING, VERIFYING}:
        raise ObjectError(f"{key[:200]!r} lies where runners write. Deliver outputs below another name than {STAGING}.")
    return key


def staging_key(job_id: UUID, n: int) -> str:
    """The one key that one `publish` of a job may write.

    Args:
        job_id: the job.
        n: a number, 0 or more, that this job has never used.
    """
    assert n >= 0, "numbers count up"
    return f"{staging_prefix(job_id)}{n}"


def staging_prefix(job_id: UUID) -> str:
    """Below this lies all that a job has published and that was not promoted or removed."""
    return f"{STAGING}/{job_id}/"


def verifying_key(staged: str, attempt: str) -> str:
    """Where a staged object is judged.

    Args:
        staged: its key.
        attempt: names one judgement: what another has copied meanwhile may be another thing.

    Raises: ObjectError if the key is none of a staged object.
    """
    head, _, rest = check_key(staged).partition("/")
    if head != STAGING or rest.count("/") != 1:
        raise ObjectError(f"{staged[:200]!r} is no staged object: those are {STAGING}/{{jobId}}/{{n}}.")
    return f"{VERIFYING}/{rest}/{attempt}"
