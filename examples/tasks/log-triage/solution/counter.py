"""Counts visits by name, and keeps the numbers in a file that is replaced whole."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

PORT, STATE = int(sys.argv[1]), sys.argv[2]


def load():
    """Return the numbers; none where the file cannot be read or holds something else."""
    try:
        with open(STATE, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: number for name, number in found.items() if type(number) is int}


NUMBERS = load()


class Counter(BaseHTTPRequestHandler):
    """Answers /hit/NAME and /count/NAME."""

    def do_GET(self):
        """Count, or tell the number."""
        verb, _, name = self.path.strip("/").partition("/")
        if verb not in ("hit", "count"):
            self.send_error(404)
            return
        if verb == "hit":
            NUMBERS[name] = NUMBERS.get(name, 0) + 1
            with open(STATE + ".new", "w", encoding="utf-8") as file:
                json.dump(NUMBERS, file)
            os.replace(STATE + ".new", STATE)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(NUMBERS.get(name, 0)).encode())


HTTPServer(("127.0.0.1", PORT), Counter).serve_forever()
