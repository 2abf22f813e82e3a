"""Tasks: read from directories and packaged sets, checked, and certified. They are judged by the judge, never here."""
