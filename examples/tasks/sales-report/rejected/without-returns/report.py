"""Wrong: duplicates count, and returns do not."""

import csv

totals = {}
with open("sales.csv", newline="") as file:
    for row in csv.DictReader(file):
        if all(row.values()):
            key = f"{row['date'][:4]}Q{(int(row['date'][5:7]) + 2) // 3}", row["product"]
            before = totals.get(key, (0, 0))
            totals[key] = before[0] + int(row["units"]), before[1] + int(row["units"]) * int(row["unit_price"])
print("quarter,product,units,revenue")
for (quarter, product), (units, cents) in sorted(totals.items(), key=lambda item: (item[0][0], -item[1][1], item[0][1])):
    print(f"{quarter},{product},{units},{cents}")
