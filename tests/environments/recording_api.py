"""The trajectory API with a proxy before it that keeps every post as it came."""

import gzip
import http.client
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def recording(port):
    """Before the API on a port; gives the proxy's URL and the list of the bodies that were posted."""
    bodies = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(port, bodies))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def handler(port, bodies):
    class Handler(BaseHTTPRequestHandler):
        # With HTTP/1.0 every request would be a new connection, which hints at a restarted API.
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.forward()

        def do_POST(self):
            self.forward()

        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/scored_data":
                bodies.append(gzip.decompress(body))
            behind = http.client.HTTPConnection("127.0.0.1", port)
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            text = answer.read()
            behind.close()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    return Handler
