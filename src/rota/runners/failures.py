"""Why an op did not go well, while it travels up to where it becomes an `OpError`. Pure."""

from rota.runners.messages import OpError


class OpFailure(Exception):
    """An op failed for a reason that its caller is told.

    `code` is one of `OpCode`; `retryable` says that the same op with a fresh URL, or later, may go well.
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.error = OpError(code=code, message=message, retryable=retryable)
