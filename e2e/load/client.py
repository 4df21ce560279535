"""The load generator as it runs in its pod: standard library only, its orders in the environment variable LOAD.

Each client sends one streaming request after the other, each over a connection of its own, until the time is over; a
request that has begun is finished. One JSON line a second tells how it goes, the last one has `"ended": true`.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

TIMEOUT_S = 600
LONGEST_WAIT_S = 2.0


class Load:
    """Clients, and what became of their requests."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.lock = threading.Lock()
        self.end = time.monotonic() + orders["seconds"]
        self.sent = 0

    def run(self) -> None:
        """Returns when the last request has ended."""
        clients = [threading.Thread(target=self.client, args=(index,)) for index in range(self.orders["clients"])]
        for thread in clients:
            thread.start()
        while any(thread.is_alive() for thread in clients):
            time.sleep(1)
            self.tell(ended=False)
        self.tell(ended=True)

    def client(self, index: int) -> None:
        """One client."""
        time.sleep(index * self.orders.get("ramp_s", 0.0) / max(1, self.orders["clients"]))
        while time.monotonic() < self.end and not self.is_enough():
            self.note(*self.request())

    def is_enough(self) -> bool:
        """Takes the next number; true when all requests were sent, or no more are wanted."""
        with self.lock:
            self.sent += 1
            return os.path.exists(self.orders["stop_file"]) or self.sent > int(self.orders.get("requests", sys.maxsize))

    def request(self) -> tuple[str, str]:
        """One request; what became of it, and what there is to say about it."""
        bodies = self.orders["bodies"]
        body = bodies[self.sent % len(bodies)] | {"stream": True}
        connection = http.client.HTTPConnection(self.orders["host"], self.orders["port"], timeout=TIMEOUT_S)
        try:
            connection.request("POST", self.orders["path"], json.dumps(body), {"content-type": "application/json"})
            reply = connection.getresponse()
            if reply.status == 429:
                time.sleep(min(LONGEST_WAIT_S, float(reply.headers.get("retry-after", 1))))
                return "refused", ""
            if reply.status != 200:
                return "failed", f"{reply.status} {reply.read(300)!r}"
            return self.read(reply)
        except (OSError, http.client.HTTPException) as error:
            return "failed", f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def read(self, reply: http.client.HTTPResponse) -> tuple[str, str]:
        """A stream to its end."""
        last = b""
        for line in reply:
            if line.strip():
                last = line.strip()
        if last == b"data: [DONE]":
            return "done", ""
        return "cut", f"the stream ended with {last[-200:]!r}"

    def note(self, result: str, message: str) -> None:
        """Count a request."""
        with self.lock:
            self.counts[result] += 1
            if message and len(self.errors) < 5:
                self.errors.append(message)

    def tell(self, *, ended: bool) -> None:
        """One line."""
        with self.lock:
            counts = {name: self.counts[name] for name in ("done", "failed", "cut", "refused")}
            print(json.dumps(counts | {"errors": self.errors, "ended": ended}), flush=True)


if __name__ == "__main__":
    Load(json.loads(os.environ["LOAD"])).run()
