"""uvicorn's HTTP protocol, with errors in JSON and a bound on headers."""

from __future__ import annotations

import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of one request before its body, or after it. Headers are held in memory, and a parser that waits for their end is
#: fed again and again.
_LONGEST_HEAD = 64 << 10


class HttpProtocol(HttpToolsProtocol):
    """Answers 400 and 431 as every other error is answered: ``{"error": …, "code": …}``."""

    _head_bytes = 0  # of the head, or of what follows the last chunk of a body

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless head or trailers have grown too long."""
        self._head_bytes += len(data)
        super().data_received(data)
        # The parser may have come to a part of the body meanwhile, or to the end of the request.
        if self._head_bytes > _LONGEST_HEAD and not self.transport.is_closing():
            self._refuse(431, "Request Header Fields Too Large", f"headers: more than {_LONGEST_HEAD} bytes")

    def on_headers_complete(self) -> None:
        """Count anew; a body follows, or nothing."""
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count anew; more of the body follows, or trailers."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count anew; the next request of this connection follows."""
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(400, "Bad Request", msg)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        body = json.dumps({"error": message, "code": "malformed"}).encode()
        head = (
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
