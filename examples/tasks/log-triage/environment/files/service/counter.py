"""Counts visits by name, and keeps the numbers in a file."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Counter(BaseHTTPRequestHandler):
    """Answers /hit/NAME and /count/NAME."""

    def do_GET(self):
        """Count, or tell the number."""
        _, verb, name = self.path.split("/")
        numbers = json.load(open(STATE))
        if verb == "hit":
            numbers[name] = numbers[name] + 1
            json.dump(numbers, open(STATE, "w"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(numbers[name]).encode())


PORT, STATE = int(sys.argv[1]), sys.argv[2]
HTTPServer(("127.0.0.1", PORT), Counter).serve_forever()
