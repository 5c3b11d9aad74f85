# What the loops of kernels cost on a device, read from SASS.
# usage: nvdisasm -c FILE.cubin | awk -f sass.awk
#
# One line for each loop that loads from global memory:
#     FUNCTION N instructions FIRST loads [NAME=COUNT]...
# FIRST is "first" if every load has been issued before an instruction reads what one of them brings,
# "late" if not. Names: ldN and stN are loads and stores of N bits, rsq and rcp the beginnings of
# roots and divisions, widen and pack the conversions of fp16 and bf16.
#
# A backward branch closes a loop. Of the paths from its head to that branch without a call, the one
# that stores most is counted, and of several such paths the shortest: any other would leave out the
# work of the lanes that are not past the end. Predicated stores do not count, nor do stores of zeros,
# which clear gradients on request. The slow paths of roots and divisions are calls, and the paths for
# NaN are detours.

function followers(i) { # to[1 .. n_to]
    n_to = 0
    if (op[i] ~ /^BRA/ && target[i] in at) to[++n_to] = at[target[i]]
    if (op[i] ~ /^(BRA|CALL|EXIT|RET|BRX)/ && !guarded[i]) return
    if (i < n) to[++n_to] = i + 1
}

function kind_of(o) {
    if (o ~ /^LDG/) return "ld" (o ~ /\.128/ ? 128 : o ~ /\.64/ ? 64 : o ~ /\.[US]?16/ ? 16 : o ~ /\.[US]?8/ ? 8 : 32)
    if (o ~ /^STG/) return "st" (o ~ /\.128/ ? 128 : o ~ /\.64/ ? 64 : o ~ /\.[US]?16/ ? 16 : o ~ /\.[US]?8/ ? 8 : 32)
    if (o ~ /^MUFU\.RSQ/) return "rsq"
    if (o ~ /^MUFU\.RCP/) return "rcp"
    if (o ~ /^HADD2\.F32/) return "from_f16"
    if (o ~ /^F2F/) return o ~ /BF16/ ? "to_bf16" : "to_f16"
    return ""
}

# Ways that only go forwards, by what is left to the tail: first the most stores, then the fewest
# instructions.
function through(head, tail,    i, k, j, better) {
    delete next_; delete stores; delete left
    stores[tail] = 0
    left[tail] = 1
    for (i = tail - 1; i >= head; i--) {
        followers(i)
        better = 0
        for (k = 1; k <= n_to; k++) {
            j = to[k]
            if (j <= i || !(j in left)) continue
            if (!better || stores[j] > stores[better] ||
                (stores[j] == stores[better] && left[j] < left[better])) better = j
        }
        if (!better) continue
        next_[i] = better
        stores[i] = stores[better] + (i in storing)
        left[i] = left[better] + 1
    }
    return head in left
}

function loop(head, tail,    q, first, last, i, k, length_, path, p, final, loads, late, kind, count, line) {
    delete parent
    if (through(head, tail)) {
        parent[head] = 0
        for (i = head; i < tail; i = next_[i]) parent[next_[i]] = i
    }
    first = last = 1
    q[1] = head
    parent[head] = 0
    while (first <= last && !(tail in parent)) {
        followers(q[first])
        for (k = 1; k <= n_to; k++)
            if (!(to[k] in parent)) { parent[to[k]] = q[first]; q[++last] = to[k] }
        first++
    }
    if (!(tail in parent)) return
    for (i = tail; i; i = parent[i]) path[++length_] = i # backwards
    for (p = length_; p >= 1; p--)
        if (op[path[p]] ~ /^LDG/) { loads++; final = p }
    if (!loads) return
    delete brought
    for (p = length_; p >= 1; p--) {
        i = path[p]
        if (p > final)
            for (k in brought) if ((i, k) in reading) late = 1
        kind = kind_of(op[i])
        if (kind != "") count[kind]++
        if (kind ~ /^ld/)
            for (k = 0; k < (kind == "ld128" ? 4 : kind == "ld64" ? 2 : 1); k++)
                brought[result[i] + k] = 1
    }
    line = name " " length_ " instructions " (late ? "late" : "first") " loads"
    for (k = 1; k <= n_kinds; k++)
        if (kinds[k] in count) line = line " " kinds[k] "=" count[kinds[k]]
    if (!(path[final] in told)) print line # several branches may close one loop
    told[path[final]] = 1
}

function finish(    i) {
    for (i = 1; i <= n; i++)
        if (op[i] ~ /^BRA/ && target[i] in at && at[target[i]] <= i) loop(at[target[i]], i)
    n = 0
    delete at; delete op; delete target; delete guarded; delete result; delete reading
    delete told; delete storing
}

BEGIN { n_kinds = split("ld128 ld64 ld32 ld16 ld8 st128 st64 st32 st16 st8 rsq rcp from_f16 to_f16 to_bf16", kinds, " ") }

/^[ \t]*\.section[ \t]/ {
    finish()
    name = ""
    if (match($0, /\.text\.[A-Za-z0-9_]+/)) name = substr($0, RSTART + 6, RLENGTH - 6)
    next
}
/^\.L[A-Za-z0-9_]+:/ { sub(/:.*/, "", $1); at[$1] = n + 1; delete zeros; next }
name != "" && /;/ {
    gsub(/\/\*[^*]*\*\//, "")
    sub(/;.*/, "")
    sub(/^[ \t{]+/, "")
    if ($0 !~ /^(@!?U?P[T0-9]+[ \t]+)?[A-Z][A-Z0-9_.]*/) next
    n++
    guarded[n] = /^@/
    sub(/^@[^ \t]+[ \t]+/, "")
    op[n] = /^F2FP.*RZ, *RZ *$/ ? "MOV" : $1 # a zero
    $1 = ""
    m = split($0, operand, ",")
    if (op[n] ~ /^BRA/) {
        if ($0 ~ /^ *!?U?P[0-9]/ || op[n] ~ /DIV|CONV/) guarded[n] = 1
        if (match($0, /`\([^)]*/)) target[n] = substr($0, RSTART + 2, RLENGTH - 2)
    }
    for (k = 1; k <= m; k++) gsub(/ /, "", operand[k])
    if (op[n] ~ /^STG?(\.|$)/ && !guarded[n] && operand[m] != "RZ" && !(operand[m] in zeros)) storing[n] = 1
    delete zeros[operand[1]]
    if (op[n] == "MOV" && operand[2] == "RZ") zeros[operand[1]] = 1
    if (operand[1] ~ /^R[0-9]+$/) result[n] = substr(operand[1], 2) + 0
    for (k = op[n] ~ /^(ST|RED|BRA)/ ? 1 : 2; k <= m; k++) {
        x = operand[k]
        gsub(/UR[0-9]+/, "", x)
        while (match(x, /R[0-9]+(\.64)?/)) {
            r = substr(x, RSTART + 1, RLENGTH - 1)
            reading[n, r + 0] = 1
            if (r ~ /\.64/) reading[n, r + 1] = 1
            x = substr(x, RSTART + RLENGTH)
        }
    }
}
END { finish() }
