# run.sh - make test, ci and check. It prints what runs and how long that took here last time; runs the suites,
# each of which leaves a log; prints the command that runs a failed one again; last "N passed, N failed, N skipped".
# sum prints the last line alone.
# usage: MAKE=COMMAND AGAIN=COMMAND JOBS=N run.sh test|ci|check|sum BUILD/tests LOG...
name=$1 tests=$2
shift 2
times=$tests/times
if [ "$name" != sum ]; then
    groups=$(for log; do echo "${log#"$tests"/}"; done |
        sed -E 's#/.*#/*#; s#\.log$##; s#^(tier|model|cuda|bits|compile|readme|sgemm)-.*#\1-*#' | uniq | awk '!seen[$0]++')
    last=$(awk -v name="make-$name" '$1 == name {s = $3} END {if (s != "") printf ", %d s last time here", s}' \
        "$times" 2> /dev/null)
    echo "make $name: $# suites$last:" $groups
    began=$(date +%s)
    $MAKE --no-print-directory -k -j"$JOBS" "$@" || echo "make has failed: $?"
    echo "make-$name - $(($(date +%s) - began))" >> "$times"
    awk '{line[$1] = $0} END {for (name in line) print line[name]}' "$times" | sort > "$times.new" &&
        mv "$times.new" "$times"
fi
for log; do
    [ -s "$log" ] || { echo "  not run: $AGAIN $log"; continue; }
    ! grep -q '^FAIL' "$log" || echo "  again: $AGAIN $log"
done
for log; do # one that is not there counts as failed
    { tail -n 1 "$log" 2> /dev/null | grep -E '^[0-9]+ passed, [0-9]+ failed'; } || echo '0 passed, 1 failed'
done | awk '{p += $1; f += $3; s += $5}
    END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f != 0 || p == 0}'
