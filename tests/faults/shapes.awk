# Find checks of a script that cannot fail, or not for everything that they name; dead.sh runs this.
# usage: awk -f shapes.awk SCRIPT        a line for each: LINE TEXT, a tab, why
#     A && B && false || C; x = x; two texts that may be empty; a command that never says no; a file that nothing
#     writes; the status of a loop, which is that of its last round
function join(    text, more) {
    text = $0
    at = FNR
    while (text ~ /(\\|&&|\|\||[|])$/) {
        sub(/\\$/, "", text)
        if ((getline more) <= 0) break
        sub(/^ +/, " ", more)
        text = text more
    }
    return text
}
function form_of(text, size,    form) { # of a name with variables in it; what stands behind it
    form = substr(text, 1, size)
    gsub(/[$]([a-z_]+|[0-9]|[{][^}]*[}])/, "*", form)
    gsub(/[.]/, "[.]", form)
    if (form ~ /[a-z.]/) { gsub(/[*]/, ".*", form); forms["^\"[$]out/" form "\"$"] }
    return substr(text, size + 1)
}
function found(text, why) {print at, text "\t" why}
/^ *#/ {next}
{
    line = join()
    sub(/^ +/, "", line)
    sub(/ +# [^"\047]*$/, "", line)
    if (line ~ /(&&|;|\|\|) *(false|:|true) *(\|\||&&)/) found(line, "decides nothing behind true or false")
    rest = line
    while (match(rest, /(^|[ (!])(cmp|diff)( -[a-z]+)* +[^ ;|&)]+ +[^ ;|&)]+/)) {
        n = split(substr(rest, RSTART, RLENGTH), word, " ")
        if (word[n] == word[n - 1]) found(line, "a file beside itself")
        rest = substr(rest, RSTART + RLENGTH)
    }
    if (line ~ /\[ "[$][(].*\)" = +"[$][(].*\)" \]/) found(line, "two texts that may both be empty: same says no to them")
    rest = line
    gsub(/(^|[ !])test "/, " [ \"", rest)
    while (match(rest, /\[ [^]&|;]*( \]|$| [&|;])/)) {
        test = substr(rest, RSTART + 2, RLENGTH - 2)
        sub(/ ?[]&|;]?$/, "", test)
        rest = substr(rest, RSTART + RLENGTH)
        n = split(test, side, / (!?=|-eq|-ne|-le|-ge) /)
        if (n == 2 && side[1] == side[2]) found(line, "something beside itself")
        if (test ~ / -(ge|gt) "?-?0"?$/ && test !~ /-gt "?0/) found(line, "what is always so")
        if (test ~ /^(! )?-[nz] "?[^$"`]*"?$/) found(line, "a word that stands there")
    }
    # Files that are compared or searched, and whether anything else is done with them.
    rest = line
    gsub(/\047[^\047]*\047/, "", rest)
    gsub(/(^| ): > *"[^"]*"/, " ", rest)
    others = ""
    while (match(rest, /(^|[ (!])(cmp|diff|grep) [^;&|]*/)) {
        part = substr(rest, RSTART, RLENGTH)
        others = others substr(rest, 1, RSTART) " "
        rest = substr(rest, RSTART + RLENGTH)
        while (match(part, />+ *"[^"]*"/)) {
            others = others substr(part, RSTART, RLENGTH)
            part = substr(part, 1, RSTART - 1) substr(part, RSTART + RLENGTH)
        }
        while (match(part, /"[$]out\/[A-Za-z0-9_.-]+"/)) {
            name = substr(part, RSTART, RLENGTH)
            reads[++num_reads] = name
            reading[num_reads] = at " " line
            part = substr(part, RSTART + RLENGTH)
        }
    }
    others = others rest
    if (match(line, /(^| )lines "?[A-Za-z0-9_{}$.-]+/)) { # its log has the name of its results
        n = split(substr(line, RSTART, RLENGTH), word, /[ "]+/)
        if (word[n] ~ /[$]/) form_of("$x.log", 6)
        used["\"$out/" word[n] ".log\""]
    }
    rest = line
    while (match(rest, /[$]out\/[A-Za-z0-9_.{}$-]*[$][A-Za-z0-9_.{}$-]*/)) rest = form_of(substr(rest, RSTART + 5), RLENGTH - 5)
    while (match(others, /[$]out\/[A-Za-z0-9_.-]+/)) {
        used["\"" substr(others, RSTART, RLENGTH) "\""]
        others = substr(others, RSTART + RLENGTH)
    }
    # What stands last in front of check, and never says no.
    if (line ~ /^check .*[$][?]/ && last != "") print last_at, last "\tits last command never says no"
    last = ""
    last_at = at
    rest = line
    gsub(/"[^"]*"|\047[^\047]*\047/, "\"\"", rest)
    if (rest !~ /(^|[ ;])(if|for|while|until|case|then|else|do|done|check|try|refuses|lines|[a-z_]+=[^ ]*) *$|[{}()]$|;;/ &&
        line ~ /&& *(sed|sort|head|tail|cat|wc|echo|printf|tr|cut|tee|uniq|true|:|rm -f|awk)( [^;&|]*)?$/ ||
        line ~ /&& *awk [^&|]*$/ && line !~ /exit/) last = rest ~ /> *""[^&]*$/ ? "" : line
    # Where a loop ends whose status is asked for, and whether a round of it may end it.
    if (line ~ /(^|[ (;])(for|while|until) /) body = ""
    body = body "\n" line
    asks = line ~ /(^| )(check|try) .*[$][?]/
    loop = line ~ /(^|[; ])done\)?( < "[^"]*")?$/ ? (line ~ /(^|[ (;])(for|while|until) / ? line : body) : ""
    if (asks && before != "" && before !~ /\|\| *(return|exit)|exit [^0]/) found(line, "the status of the last round of a loop")
    if (line ~ /(^|[; ])done\)? *&& / && body !~ /\|\| *(return|exit)|&& *(return|exit)|exit [^0]/)
        found(line, "the status of the last round of a loop")
    before = loop
}
END { # programs name their pictures and pages
    for (i = 1; i <= num_reads; i++) {
        name = reads[i]
        known = name in used || name ~ /[.](svg|html)"$/
        for (form in forms) known += name ~ form
        if (!known) print reading[i] "\tnothing writes " name
    }
}
