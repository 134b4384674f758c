"""Texts of the system's and libraries' errors for people: without numbers, class names and lines of C files.

The caller adds what it knows: the setting to check, the server's name.
"""

import errno
import os
import re
import socket
import ssl
from typing import Final

_NUMBERS: Final = {
    ConnectionRefusedError: errno.ECONNREFUSED,
    ConnectionResetError: errno.ECONNRESET,
    ConnectionAbortedError: errno.ECONNABORTED,
    BrokenPipeError: errno.EPIPE,
}  # libraries also raise these without a number
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})  # of a disk that is full or fails: may pass
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")
_NOISE: Final = re.compile(
    r"\[(?:Errno|Error) -?\d+\] ?|\[(?:SSL|X509)(?:: \w+)?\] ?| ?\(_ssl\.c:\d+\)|<\S+ object at \w+>"
    r"|:? ?<\w+(?:Error|Exception)\b.*>"
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")  # of a class name
_NAME: Final = re.compile(r"[\w.-]+")
_BETTER: Final = {
    "NodeNotReadyError": "there is no connection to the broker",
    "KafkaTimeoutError": "no answer in time",
}  # instead of aiokafka's names of its parts


def system_number(error: BaseException) -> int | None:
    """The system's number of an error (``errno.ECONNREFUSED``), None without one. For a name with several addresses
    asyncio puts all errors into one text."""
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError | socket.gaierror):
        return None
    if isinstance(error.errno, int):
        return error.errno
    numbers = _numbers_in(error)
    if len(numbers) == 1:
        return numbers[0]
    return next((number for kind, number in _NUMBERS.items() if isinstance(error, kind)), None)


def words(error: BaseException) -> str:
    """Why something failed: part of a sentence, without a full stop."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"the certificate is not trusted: {getattr(error, 'verify_message', 'no reason given')}"
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return "TLS: the connection was closed"
        case ssl.SSLError():
            # Only OpenSSL's own have a reason, not those that Python or a library raises.
            said = (
                getattr(error, "reason", None)
                or _clean(error.strerror or str(error.args[0] if error.args else ""))
                or "broken off"
            )
            return f"TLS: {said.lower().replace('_', ' ')}"
        case socket.gaierror(errno=socket.EAI_AGAIN):
            return "its host name cannot be looked up now"
        case socket.gaierror():
            return "its host name is not known here"
        case TimeoutError():
            return "no answer in time"
        case EOFError() if not error.args or hasattr(error, "partial"):
            return "the connection was closed"
        case KeyError() if error.args:
            return f"{error.args[0]!r} is missing"
        case BaseExceptionGroup():
            return ", ".join(dict.fromkeys(words(one) for one in error.exceptions))
    for place in ("os_error", "certificate_error", "reason"):  # where aiohttp and urllib keep the system's error
        if isinstance(inner := getattr(error, place, None), BaseException):
            return words(inner)
    if isinstance(error, OSError):
        number = system_number(error)
        if number is not None and number > 0:
            place = f": {os.fspath(error.filename)!s}" if isinstance(error.filename, str | os.PathLike) else ""
            return os.strerror(number).lower() + place
        if numbers := _numbers_in(error):
            return ", ".join(os.strerror(number).lower() for number in numbers)
    name = type(error).__name__
    said = str(error)
    if name in said or said.startswith("("):  # aiokafka's has its class name; a database's is a pair with a number
        said = next((part for part in error.args if isinstance(part, str)), "")
    said = _BETTER.get(name) or _clean(said)
    if not re.search("[A-Za-z]", said) or said == name:
        return _words_of(type(error))
    if type(error).__module__ == "aiokafka.errors" and _NAME.fullmatch(said):  # of a topic or a group
        return f"{_words_of(type(error))} ({said})"
    return said


def _words_of(kind: type[BaseException]) -> str:
    """The words in the name of an error's class, for an error without a text."""
    if kind is OSError:
        return "the system gives no reason"
    found = [word.lower() for word in _WORD.findall(kind.__name__)]
    if len(found) > 2 and found[-1] in {"error", "exception"}:  # "memory error" keeps its second word
        found.pop()
    return " ".join(found)


def _numbers_in(error: OSError) -> list[int]:
    return sorted({int(number) for number in _NUMBER.findall(str(error))})


def _clean(text: str) -> str:
    return " ".join(_NOISE.sub("", text).split()).removesuffix(".")
