"""A service by the library alone: an image posted to it is answered with its neighbours in an index, as JSON.

    softwarp index efficientnet_lite0 photos -o photos.index
    python examples/service.py photos.index
    curl --data-binary @query.jpg localhost:8000

`softwarp serve` is the one with a page, filters, limits and a token.
"""

import json
import sys
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer

import softwarp


def answer(index: softwarp.Index, content: bytes) -> str:
    return json.dumps([asdict(each) for each in index.search(content, k=10)])


def make_server(index: softwarp.Index, port: int = 8000) -> HTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                status, text = 200, answer(index, self.rfile.read(int(self.headers["Content-Length"] or 0)))
            except ValueError as error:
                status, text = 400, json.dumps({"error": str(error)})
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text.encode())

    return HTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    make_server(softwarp.Index.open(sys.argv[1])).serve_forever()
