"""The same by queries."""

import csv
import sqlite3

database = sqlite3.connect("returns.sqlite")
database.execute("CREATE TEMP TABLE sale(date TEXT, region TEXT, product TEXT, units INTEGER, price INTEGER)")
with open("sales.csv", newline="") as file:
    for row in csv.DictReader(file):
        values = tuple(row[name] for name in ("date", "region", "product", "units", "unit_price"))
        if all(values):
            database.execute("INSERT INTO sale VALUES (?, ?, ?, ?, ?)", values)
query = """
WITH once AS (SELECT DISTINCT * FROM sale), moved AS (
  SELECT date, product, units, units * price AS cents FROM once
  UNION ALL
  SELECT date, product, -units, -units * coalesce((
    SELECT price FROM once WHERE once.region = returned.region AND once.product = returned.product
      AND once.date <= returned.date ORDER BY once.date DESC LIMIT 1), 0) FROM returned
)
SELECT substr(date, 1, 4) || 'Q' || ((substr(date, 6, 2) + 2) / 3) AS quarter, product, sum(units), sum(cents)
FROM moved GROUP BY quarter, product HAVING sum(units) != 0 OR sum(cents) != 0
ORDER BY quarter, sum(cents) DESC, product
"""
print("quarter,product,units,revenue")
for row in database.execute(query):
    print(",".join(map(str, row)))
