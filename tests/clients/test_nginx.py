"""nginx in front of the proxy: with its defaults, and with the snippet of the README."""

import http.client
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import openai
from common import MODELS, PoolTest, release
from lab import die_with_parent

README = Path(__file__).parents[2] / "README.md"
DEFAULTS = "location / { proxy_pass http://PROXY; }"
KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx(PoolTest):
    def start(self, location, **spec):
        pool = self.pool(**spec)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        temporary = "".join(f"{kind}_temp_path {folder.name}/{kind};" for kind in KINDS)
        conf = Path(folder.name, "nginx.conf")
        conf.write_text(f"""
            {"user root;" if os.getuid() == 0 else ""}
            daemon off; pid {folder.name}/pid; error_log {folder.name}/error.log;
            events {{}}
            http {{
                access_log off; {temporary}
                server {{
                    listen 127.0.0.1:{port};
                    {location.replace("PROXY", pool.address)}
                }}
            }}
        """)
        nginx = subprocess.Popen(["nginx", "-e", f"{folder.name}/error.log", "-c", conf],
                                 preexec_fn=lambda: die_with_parent(signal.SIGTERM))
        self.addCleanup(nginx.wait)
        self.addCleanup(nginx.terminate)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and nginx.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        else:
            self.fail("nginx does not listen: " + Path(folder.name, "error.log").read_text())
        pool.at(f"127.0.0.1:{port}")
        return pool

    def snippet(self):
        found = re.search(r"```nginx\n(.*?)```", README.read_text(), re.S)
        text = found[1]
        self.assertIn("http://127.0.0.1:3300", text)
        return text.replace("127.0.0.1:3300", "PROXY")

    def client(self, pool):
        client = openai.OpenAI(base_url=pool.origin + "/v1", api_key=pool.key)
        self.addCleanup(client.close)
        return client

    def stream(self, client, words):
        return client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": words}], stream=True
        )

    def arrives_event_by_event(self, pool, gate):
        """Each event but the first leaves the stand-in only when the client has the one before."""
        started, events = time.monotonic(), 0
        for chunk in self.stream(self.client(pool), f"standin:gate={gate}"):
            events += 1
            release(gate)
        self.assertEqual((events, chunk.choices[0].finish_reason), (6, "stop"))
        self.assertLess(time.monotonic() - started, 10)

    def test_defaults(self):
        pool = self.start(DEFAULTS)
        self.arrives_event_by_event(pool, "nginx-defaults")
        self.assertEqual([model.id for model in self.client(pool).models.list()], MODELS)

    def test_snippet_of_the_readme(self):
        pool = self.start(self.snippet())
        self.arrives_event_by_event(pool, "nginx-snippet")

    def test_defaults_with_http_1_1(self):
        pool = self.start(DEFAULTS.replace("}", "proxy_http_version 1.1; }"))
        self.arrives_event_by_event(pool, "nginx-1-1")

    def test_a_cut_stream_looks_cut(self):
        """With the snippet; by nginx's default of HTTP/1.0 nobody could tell."""
        pool = self.start(self.snippet())
        with self.assertRaises(openai.APIConnectionError):
            list(self.stream(self.client(pool), "standin:cut"))

    def test_rotation_and_exhaustion(self):
        pool = self.start(DEFAULTS, quota=1)
        client = self.client(pool)
        for _ in range(4):
            client.chat.completions.create(model="any", messages=[])
        self.assertEqual(len(set(pool.slots())), 4)
        self.is_exhausted(pool, openai.InternalServerError,
                          lambda: client.chat.completions.create(model="any", messages=[]))

    def test_buttons_of_the_page(self):
        """A browser says where the page came from, also below a path."""
        for location, path in [(self.snippet(), ""), (self.snippet().replace(
                "location / {", "location /pool/ {").replace("PROXY;", "PROXY/;"), "/pool")]:
            pool = self.start(location)
            connection = http.client.HTTPConnection(pool.address, timeout=30)
            self.addCleanup(connection.close)
            connection.request("POST", path + "/models/reset", '{"all":true}',
                               {"authorization": f"Bearer {pool.key}",
                                "origin": f"http://{pool.address}"})
            self.assertEqual(connection.getresponse().status, 200)

    def test_large_body(self):
        pool = self.start(self.snippet())
        words = "x" * (8 << 20)
        connection = http.client.HTTPConnection(pool.address, timeout=30)
        self.addCleanup(connection.close)
        body = '{"model":"any","messages":[{"role":"user","content":"%s"}]}' % words
        connection.request("POST", "/v1/chat/completions", body,
                           {"authorization": f"Bearer {pool.key}"})
        self.assertEqual(connection.getresponse().status, 200)
        self.assertEqual(len(pool.calls()), 1)


if __name__ == "__main__":
    unittest.main()
