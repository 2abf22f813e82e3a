set -e
cp /solution/counter.py service/counter.py
first=$(grep ' 500 ' service.log | head -n 1 | cut -d ' ' -f 1)
printf '{"first_failure": "%s", "failed_requests": %s, "cause": "damaged state"}\n' "$first" "$(grep -c ' 500 ' service.log)" > report.json
