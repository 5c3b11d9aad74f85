# Find checks of a test in C that cannot fail: CHECK(1), CHECK(x == x), CHECK_MEM(a, b, 0), a check in a loop of no round or
# in if (0). (A test that meets no check fails when it runs: test.h.)
# usage: awk -f tautologies.awk TEST.c    a line for each: LINE TEXT, a tab, why
function trim(x) {gsub(/^[ \t\n]+|[ \t\n]+$/, "", x); return x}
function bare(x) { # without the parentheses around it
    x = trim(x)
    while (x ~ /^\(.*\)$/ && closing(x, 1) == length(x)) x = trim(substr(x, 2, length(x) - 2))
    return x
}
function closing(x, i,    depth, c) { # of the parenthesis at i
    for (; i <= length(x); i++) {
        c = substr(x, i, 1)
        if (c ~ /[([{]/) depth++
        if (c ~ /[])}]/ && !--depth) return i
    }
    return 0
}
function split_at(x, words, part,    n, i, c, depth, from, k, w, hit) { # at depth 0
    n = split("", part)
    from = 1
    for (i = 1; i <= length(x); i++) {
        c = substr(x, i, 1)
        if (c ~ /[([{]/) depth++
        if (c ~ /[])}]/) depth--
        if (depth) continue
        hit = 0
        for (k = split(words, w, " "); k; k--) if (substr(x, i, length(w[k])) == w[k]) hit = length(w[k])
        if (!hit) continue
        part[++n] = substr(x, from, i - from)
        from = i + hit
        i = from - 1
    }
    part[++n] = substr(x, from)
    return n
}
function constant(x) { # of numbers alone, or true; CHECK(0) is there to fail
    x = bare(x)
    if (x == "true" || x == "\"\"") return 1
    if (x ~ /^0*$/ || !gsub(/[0-9][0-9a-fA-FxXuUlL.]*/, "", x)) return 0
    return x !~ /[A-Za-z_"]/
}
function always(x,    n, part, i) {
    x = bare(x)
    if ((n = split_at(x, "||", part)) > 1) {
        for (i = 1; i <= n; i++) if (always(part[i])) return 1
        return n == 2 && (bare(part[1]) == "!" bare(part[2]) || bare(part[2]) == "!" bare(part[1]))
    }
    if ((n = split_at(x, "&&", part)) > 1) { # a part of it that is always true adds nothing
        for (i = 1; i <= n; i++) if (always(part[i])) return 1
        return 0
    }
    if (x !~ /<<|>>|->/ && (n = split_at(x, "== <= >=", part)) == 2 && bare(part[1]) == bare(part[2])) return 1
    return constant(x) || x ~ /^sizeof[^=&|]*(> *0|!= *0)$/ || x ~ /^&[a-z_]+ *!= *NULL$/
}
function zero(name, up_to,    body) { # a variable that is set to 0 and not named again up to there
    if (name !~ /^[a-z_][A-Za-z0-9_]*$/) return 0
    body = substr(text, up_to > 3000 ? up_to - 3000 : 1, up_to > 3000 ? 3000 : up_to - 1)
    sub(/.*\n}\n/, "", body)
    return body ~ ("[^A-Za-z0-9_]" name " = 0[,;]") && gsub("[^A-Za-z0-9_]" name "[^A-Za-z0-9_]", "", body) == 1
}
function no_round(x, up_to,    part, n) { # the head of a for loop
    if (split_at(x, ";", part) != 3) return 0
    n = part[1]
    sub(/.*= */, "", n)
    x = part[2]
    return sub(/^[^<]*< */, "", x) && (trim(n) == trim(x) || zero(trim(x), up_to))
}
function found(why) {print at, shown "\t" why}
{ # comments, strings and characters say nothing
    gsub(/\\\\/, ""); gsub(/\\"/, ""); gsub(/'.'|'\\.'/, "c")
    if (!/^ *# *include/) gsub(/"[^"]*"/, "\"\"")
    gsub(/\/\*([^*]|\*[^\/])*\*\//, "")
    sub(/\/\/.*/, "")
    if (comment) { if (!sub(/.*\*\//, "")) next; comment = 0 }
    if (/\/\*/) { sub(/\/\*.*/, ""); comment = 1 }
}
/^ *#/ {if (/\\$/) skips = 1; next}
skips {skips = /\\$/; next}
{text = text $0 "\n"; number[FNR] = length(text)}
END {
    line = 1
    while (match(substr(text, begin + 1), /CHECK[A-Z0-9_]*\(/)) {
        at = begin + RSTART
        name = substr(text, at, RLENGTH - 1)
        open = at + RLENGTH - 1
        end = open + closing(substr(text, open, 4000), 1) - 1
        inside = substr(text, open + 1, end - open - 1)
        back = substr(text, at > 200 ? at - 200 : 1, at > 200 ? 200 : at - 1)
        while (number[line] < at || !(line in number)) line++
        begin = open
        at = line
        shown = name "(" inside ")"
        gsub(/[ \n]+/, " ", shown)
        if (name == "CHECK") { if (inside !~ /^ *!""/ && always(inside)) found("is always true") }
        else if ((n = split_at(inside, ",", part)) >= 2) {
            if (bare(part[1]) == bare(part[2])) found("something beside itself")
            if (name == "CHECK_MEM" && n == 3 && bare(part[3]) == "0") found("of no byte")
        }
        if (name == "CHECK" && inside ~ /[^=!<>+*\/|&^-]=[^=]/) found("an assignment")
        sub(/.*[;}][ \t]*\n/, "", back)
        if (back ~ /(if|while) \((0|false)( &&|\))/) found("is never met")
        else if (match(back, /for \(/) && (n = closing(back, RSTART + 4)) > 0) {
            if (no_round(substr(back, RSTART + 5, n - RSTART - 5), begin - length(name) - length(back) + RSTART))
                found("is in a loop of no round")
        } else if (match(back, /(if|while) \([a-z_][A-Za-z0-9_]*\)/)) {
            x = substr(back, RSTART, RLENGTH)
            gsub(/.*\(|\)/, "", x)
            if (zero(x, begin - length(name) - length(back) + RSTART)) found("is never met")
        }
    }
}
