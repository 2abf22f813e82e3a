exec python3 /solution/fill.py
