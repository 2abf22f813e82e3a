"""Looks at the document that was handed in; nothing of it is run. Each part is a reward of its own."""

import json
import zipfile
from xml.etree import ElementTree

MOST_BYTES = 1 << 20
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
ROWS = [
    ["Item", "Amount"],
    ["Train", "89.00 EUR"],
    ['Hotel "Zur Post"', "312.40 EUR"],
    ["Parts <spare>", "1200.20 EUR"],
    ["Taxi", "0.10 EUR"],
]
FIELDS = [
    "Name: Ada Müller & Sons",
    "Department: R&D <North>",
    "From 17 May 2024 to 2 June 2024, to Graz",
    "I declare that the above is true. Signed: Ada Müller & Sons",
]
TOTAL = "Total: 1601.70 EUR"


def read(path):
    """Return the files of a document. Raises ValueError for one that is too large."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
            raise ValueError("too large")
        return {name: archive.read(name) for name in archive.namelist()}


def texts(claim):
    """Return the paragraphs outside of tables."""
    body = ElementTree.fromstring(claim["content.xml"])
    inside = {id(each) for table in body.iter(f"{TABLE}table") for each in table.iter()}
    return ["".join(each.itertext()) for each in body.iter(f"{TEXT}p") if id(each) not in inside]


def opens(claim, form):
    """It is a document, and its type is its first file."""
    ElementTree.fromstring(claim["content.xml"])
    return next(iter(claim)) == "mimetype" and claim["mimetype"] == form["mimetype"]


def fields(claim, form):
    """Each field has its value, in its place."""
    return [text for text in texts(claim) if not text.startswith("Total")] == FIELDS


def table(claim, form):
    """A row for each expense, in order."""
    body = ElementTree.fromstring(claim["content.xml"])
    found = [["".join(cell.itertext()) for cell in row.iter(f"{TABLE}table-cell")] for row in body.iter(f"{TABLE}table-row")]
    return found == ROWS


def total(claim, form):
    """The sum is right to the cent."""
    return [text for text in texts(claim) if text.startswith("Total")] == [TOTAL]


def untouched(claim, form):
    """Everything but the content is as it was, and so are its headings and styles; and it was filled."""
    others = {name: content for name, content in form.items() if name != "content.xml"}
    same = {name: content for name, content in claim.items() if name != "content.xml"} == others
    before, after = (each["content.xml"].decode() for each in (form, claim))
    return same and before != after and before.split("<office:body>")[0] == after.split("<office:body>")[0]


def passes(test):
    """Return 1 when a test holds."""
    try:
        return int(test(read("/submission/claim.odt"), read("/tests/form.odt")))
    except Exception as error:  # whatever a submission makes it raise is a test that fails
        print(f"{test.__name__}: {error!r}")
        return 0


rewards = {test.__name__: passes(test) for test in (opens, fields, table, total, untouched)}
with open("/logs/verifier/reward.json", "w") as file:
    json.dump(rewards, file)
