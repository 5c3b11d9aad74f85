# Checks that cannot fail, as the end of a script: self.sh appends them to a copy of pages.sh. dead.sh has to find each
# line that says so, and no other.
try 'planted: whatever the program does' sh -c "'$build/report' --bogus || echo"
: > "$out/two"
"$build/report" --help | grep '^no such line' > "$out/three"
[ "$(cat "$out/two")" = "$(cat "$out/three")" ] # planted
check 'planted: two that are both empty' $?
"$build/report" --help > "$out/log" && grep -q 'x*' "$out/log" # planted
check 'planted: a pattern that fits an empty line' $?
try 'planted: a word' test -n word
! a_program_that_is_not_there > "$out/log" 2>&1
check 'planted: what is not there does not succeed' $?
bad=0
for file in $(ls "$out"/*.nothing 2> /dev/null); do cmp "$file" "$out/log" || bad=1; done
check 'planted: of no file none differs' $bad
"$build/report" --help > "$out/log" && awk '/usage/ {found = 1}' "$out/log" # planted
check 'awk without an exit' $?
"$build/report" --help | tee "$out/log"
check 'planted: the status of tee' $?
"$build/report" --help > "$out/log" && for word in usage out; do grep -q "$word" "$out/log"; done
check 'planted: the last round of a loop' $?
refuses 'planted: any line will do' . "$build/report" --bogus
! grep -q error "$out/log.that.is.not.there" # planted
check 'no error in a file that nothing writes' $?
if [ "$out" = here ]; then try 'planted: never met' "$build/report" --help; fi
"$build/report" --help > "$out/log" && grep -q '^usage' "$out/log"
check 'this one can fail' $?
finish
