"""Print what each product earned in each quarter."""

import csv
import sqlite3

with sqlite3.connect("returns.sqlite") as database:
    returned = database.execute("SELECT date, region, product, units FROM returned").fetchall()

with open("sales.csv", newline="") as file:
    rows = {tuple(row[name] or "" for name in ("date", "region", "product", "units", "unit_price")) for row in csv.DictReader(file)}
sales = sorted((date, region, product, int(units), int(price)) for date, region, product, units, price in rows if all((date, region, product, units, price)))

totals = {}


def add(date, product, units, cents):
    """Count units and cents in the quarter of a day."""
    quarter = f"{date[:4]}Q{(int(date[5:7]) + 2) // 3}"
    before = totals.get((quarter, product), (0, 0))
    totals[quarter, product] = (before[0] + units, before[1] + cents)


for date, _, product, units, price in sales:
    add(date, product, units, units * price)
for date, region, product, units in returned:
    earlier = [sale for sale in sales if sale[1:3] == (region, product) and sale[0] <= date]
    price = max(earlier, key=lambda sale: sale[0])[4] if earlier else 0
    add(date, product, -units, -units * price)

print("quarter,product,units,revenue")
for (quarter, product), (units, cents) in sorted(totals.items(), key=lambda item: (item[0][0], -item[1][1], item[0][1])):
    if units or cents:
        print(f"{quarter},{product},{units},{cents}")
