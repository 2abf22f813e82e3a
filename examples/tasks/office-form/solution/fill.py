"""Fills the form."""

import json
import re
import zipfile
from datetime import date
from decimal import Decimal
from xml.sax.saxutils import escape

with open("trip.json", encoding="utf-8") as file:
    trip = json.load(file, parse_float=Decimal)


def day(text):
    """Return a date as the form wants it."""
    parsed = date.fromisoformat(text)
    names = "January February March April May June July August September October November December".split()
    return f"{parsed.day} {names[parsed.month - 1]} {parsed.year}"


def money(amount):
    """Return an amount as the form wants it."""
    return f"{Decimal(amount):.2f} {trip['currency']}"


def fill(text, values):
    """Replace the fields of a text."""
    return re.sub(r"\{\{(\w+)\}\}", lambda field: escape(values[field[1]]) if field[1] in values else field[0], text)


expenses = sorted(trip["expenses"], key=lambda each: each["date"])
with zipfile.ZipFile("form.odt") as form, zipfile.ZipFile("claim.odt", "w") as claim:
    for entry in form.infolist():
        content = form.read(entry)
        if entry.filename == "content.xml":
            text = content.decode()
            row = re.search(r"<table:table-row>(?:(?!<table:table-row>).)*\{\{item\}\}.*?</table:table-row>", text)[0]
            rows = [fill(row, {"item": each["item"], "amount": money(each["amount"])}) for each in expenses]
            text = text.replace(row, "".join(rows))
            values = {name: trip[name] for name in ("name", "department", "place")}
            values |= {name: day(trip[name]) for name in ("start", "end")}
            values["total"] = money(sum(each["amount"] for each in expenses))
            content = fill(text, values).encode()
        claim.writestr(entry, content, compress_type=entry.compress_type)
