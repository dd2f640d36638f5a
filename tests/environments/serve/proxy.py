"""A proxy before the trajectory API, as a cluster has one: it stays when the API goes, and can refuse."""

import threading
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Proxy:
    """Passes requests on over connections of its own; keeps the caller's connection open whatever happens."""

    def __init__(self, port):
        self._to = port
        self.answers = {}
        """Status and body by path, instead of what the API would say; `*`: any path."""
        self.then = {}
        """What happens once, between the API's answer to a path and the moment that the caller gets it."""
        self.seen = []
        """Method, path and body of every request."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.seen.append((self.command, self.path, body))
                status, text = proxy.reply(self.command, self.path, body, self.headers)
                proxy.then.pop(self.path, lambda: None)()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer  # noqa: N815 - names of the base class

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def reply(self, method, path, body, headers):
        """Status and body of what the caller gets."""
        said = self.answers.get(path, self.answers.get("*"))
        return said or self.passed_on(method, path, body, headers)

    def passed_on(self, method, path, body, headers):
        """What the server behind answers."""
        connection = HTTPConnection("127.0.0.1", self._to, timeout=30)
        kept = {name: headers[name] for name in ("Content-Type", "Content-Encoding") if headers[name]}
        try:
            connection.request(method, path, body, kept)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            return 502, b"Bad Gateway"
        finally:
            connection.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Gateway(Proxy):
    """Passes on only requests that bear a token; keeps what each of them bore."""

    def __init__(self, port, token):
        super().__init__(port)
        self._wanted, self.borne = f"Bearer {token}", []

    def reply(self, method, path, body, headers):
        self.borne.append(headers["Authorization"])
        let_in = self.borne[-1] == self._wanted
        return super().reply(method, path, body, headers) if let_in else (401, b"no")
