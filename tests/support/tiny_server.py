"""A real server on a free port of this machine, in a thread."""

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from softwarp.serve.connections import Connection


@contextmanager
def serving(app, *, http=Connection, **settings):
    """The port on which an application answers."""
    quiet = {"log_level": "error", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, http=http, **quiet, **settings))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
