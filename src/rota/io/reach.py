"""Why somebody was not reached over HTTP, in words for a person.

The library's own words name its objects (`ssl:<ssl.SSLContext object at 0x…>`); these name what to look at.
"""

import aiohttp


def why_not_reached(error: Exception) -> str:
    """What went wrong, as the end of a sentence. It may hold the address, which the caller redacts if it is secret."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            refused = error.certificate_error
            said = getattr(refused, "verify_message", None) or str(refused)
            return f"the certificate of {error.host}:{error.port} is not trusted ({said})"
        case aiohttp.ClientConnectorError():
            said = error.os_error.strerror or str(error.os_error) or type(error.os_error).__name__
            return f"{error.host}:{error.port} cannot be reached ({said})"
        case _:
            return str(error) or type(error).__name__
