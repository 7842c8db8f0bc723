#!/bin/sh
# Counts the instructions per operation of C++ under callgrind: count.sh PROGRAM. The counts of Rust
# are in scheduler/counts/table.txt.
set -e
total() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$1" "$2" "$3" 2>&1 | awk '/Collected :/ { print $4 }'
}
while read -r name times; do
  few=$(total "$1" "$name" "$times")
  many=$(total "$1" "$name" $((3 * times)))
  awk -v name="$name" -v few="$few" -v many="$many" -v times="$times" 'BEGIN { printf "%-12s %8.1f\n", name, (many - few) / (2 * times) }'
done <<OPERATIONS
yield-alone 20000
yield 20000
spawn-join 5000
hop 10000
echo 500
request 500
OPERATIONS
