# Run one suite of make. Its lines go to LOG, its name and seconds (of the processor, and of the clock) to
# BUILD/tests/times. A terminal shows one line, and what failed; a file gets every line. If LOG is what a
# compiler said of an object, only the seconds are kept.
# usage: suite.sh BUILD/tests LOG COMMAND...
tests=$1 log=$2
shift 2
name=${log#"$tests"/} name=${name%.log} began=$(date +%s)
mkdir -p "${log%/*}"
"$@" > "$log" 2>&1
status=$?
times > "$log.times" # not in a pipe, which has none of its own
seconds=$(awk 'END {gsub(/[ms]/, " "); printf "%.1f", 60 * $1 + $2 + 60 * $3 + $4}' "$log.times")
rm "$log.times"
echo "$name $seconds $(($(date +%s) - began))" >> "$tests/times"
result=$(tail -n 1 "$log" | grep -E '^[0-9]+ passed, [0-9]+ failed') || exit $status
if [ -t 1 ]; then
    printf '%6s s  %-26s %s\n' "$seconds" "$name" "$result"
    awk '/^FAIL/ {print; failed = 1; next} /^ / && failed {print; next} {failed = 0}' "$log"
else
    cat "$log"
fi
! grep -q '^FAIL' "$log" || touch -t 197001010000 "$log" # it is out of date: make runs it again
