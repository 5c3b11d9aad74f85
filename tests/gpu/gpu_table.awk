# README's tables of what gpu.sh measured, as Markdown:
#     awk -f tests/gpu/gpu_table.awk OUT/table.csv ...
# Of several files, such as those of phases 1 and 4, the later one counts. A cell without a
# measurement says so. With -v form=ratios it prints the rows that gpu.sh appends to those of one run:
# ratios of two rows, whose low end is one's low quartile over the other's high quartile.
BEGIN {
    FS = OFS = ","
    none = "not measured"
    sizes = split("124468000 148,1000000 20,10000000 50,10000000 10000,999920000 580", size)
    steps = split("step:plain,graph:in a graph,cold:in a graph; caches cold,step-clip:clipped," \
                  "graph-clip:clipped; in a graph,overflow:skipped", step)
    batches = split("128,256,512,513", batch)
    forms   = split("fp32:fp32,tf32:TF32,autocast:fp16,scaler:fp16 and a scaler", form_of)
    edges   = split("1024,2048,4096,8192", edge)
    states  = split("default,split,bf16,8bit,sr,sr-bf16,sr-8bit", state)
    kinds   = split("kept:both copies kept,weight:one operand cast,cast:both operands cast", kind)
    arrays  = split("cast-f32-f16,cast-f16-f32,scaler-check,scaler-unscale,scaler-unscale-to," \
                    "scale-loss", array)
}
NF != 8 || $1 == "name" {next}
$1 == "gpu" {
    if ($5 != "") next
    if ($2 == "command") commands = commands (commands ? "`, `" : "") $6
    said[$2] = $6
    next
}
function measured(x) {return x ~ /^[0-9.]+(e[-+]?[0-9]+)?$/ && x + 0 > 0}
measured($6) && measured($7) && measured($8) {
    key = $2 FS $3 FS $4
    if (!(($1, key) in value)) {order[++rows] = key; who[rows] = $1}
    value[$1, key] = $6; low[$1, key] = $7; high[$1, key] = $8; unit[$1, key] = $5
}

# -------------------------------------------------------------------------------- ratios

function ratio(what, key, an, ak, bn, bk) {
    if (((an, ak) in value) && ((bn, bk) in value))
        printf "%s,%s,x,%.3g,%.3g,%.3g\n", what, key, value[an, ak] / value[bn, bk],
            low[an, ak] / high[bn, bk], high[an, ak] / low[bn, bk]
}
# What a step with a scaler has more than one without, as a part of it.
function share(name, with, without) {
    if (((name, with) in value) && ((name, without) in value))
        printf "%s-share,%s,x,%.3g,%.3g,%.3g\n", name, without,
            1 - value[name, without] / value[name, with],
            1 - high[name, without] / low[name, with], 1 - low[name, without] / high[name, with]
}
function ratios_of(name, key,    part, at, suffix) {
    split(key, part, FS)
    at = FS part[2] FS part[3]
    if (part[1] ~ /^mlp-scaler/) {
        suffix = part[1] ~ /graph$/ ? "-graph" : ""
        share(name, key, "mlp-norm" suffix at)
        share(name, key, "mlp-autocast" suffix at)
    }
    if (name != "amp") return
    ratio("unfused/amp", key, "unfused", key, "amp", key)
    ratio("torch/amp", key, "torch", key, "amp", key)
    ratio("torch-foreach/amp", key, "torch-foreach", key, "amp", key)
    ratio("torch-compile/amp", key, "torch-compile", key, "amp", key)
    if (part[1] ~ /^sgemm/) ratio("cublas/amp", key, "cublas", "halves" at, "amp", key)
    if (part[1] ~ /^(step|graph)/) ratio("of-copy", key, "amp", "copy" at, "amp", key)
    if (unit["amp", key] == "GB/s" && part[1] != "array-copy")
        ratio("of-copy", key, "amp", key, "amp", "array-copy" at)
}

# ------------------------------------------------------------------------------ Markdown

function digits(x) {return x < 1000 ? sprintf("%.3g", x) : sprintf("%.0f", x)}
function cell(name, key) {
    if (!((name, key) in value)) return none
    return digits(value[name, key]) " [" digits(low[name, key]) "-" digits(high[name, key]) "]"
}
function times(an, ak, bn, bk) {
    if (!((an, ak) in value) || !((bn, bk) in value)) return none
    return sprintf("%.2f", value[an, ak] / value[bn, bk])
}
function columns(count,    i, line) {
    for (i = 0; i < count; i++) line = line "|---"
    return line "|"
}
function number(n) {
    return n >= 999000000 ? sprintf("%.3g G", n / 1e9) : sprintf("%.3g M", n / 1e6)
}
function print_steps(    i, k, at, key, part, word) {
    print "\nFused AdamW, fp16 gradients and copies, ms [quartiles]; x: how many times amp.h's.\n"
    print "| parameters | tensors | step | amp.h | of a copy | unfused | x | PyTorch | x |"
    print columns(9)
    for (i = 1; i <= sizes; i++)
        for (k = 1; k <= steps; k++) {
            split(size[i], part, " ")
            split(step[k], word, ":")
            sub(";", ",", word[2])
            at = FS part[1] FS part[2]
            key = word[1] at
            print "| " number(part[1]) " | " part[2] " | " word[2] " | " cell("amp", key) " | " \
                (word[1] == "overflow" ? "" : times("amp", "copy" at, "amp", key)) " | " \
                cell("unfused", key) " | " times("unfused", key, "amp", key) " | " \
                cell("torch", key) " | " times("torch", key, "amp", key) " |"
        }
}
function print_arrays(    i, key, copy) {
    copy = "array-copy,124468000,1"
    print "\nSingle arrays of 124 M, GB/s read and written; a copy has " cell("amp", copy) ".\n"
    print "| function | GB/s | of a copy |"
    print columns(3)
    for (i = 1; i <= arrays; i++) {
        key = array[i] ",124468000,1"
        print "| " array[i] " | " cell("amp", key) " | " times("amp", key, "amp", copy) " |"
    }
}
function print_network(    i, k, word, at, key) {
    print "\nMLP 3 x 4096 of the R torch article, one training step, ms [quartiles].\n"
    print "| batch | type | amp.h | in a graph | PyTorch | x | in a graph | x | compiled | x |"
    print columns(10)
    for (i = 1; i <= batches; i++)
        for (k = 1; k <= forms; k++) {
            split(form_of[k], word, ":")
            at = FS batch[i] FS 6
            key = "mlp-" word[1]
            print "| " batch[i] " | " word[2] " | " cell("amp", key at) " | " \
                cell("amp", key "-graph" at) " | " cell("torch", key at) " | " \
                times("torch", key at, "amp", key at) " | " cell("torch", key "-graph" at) " | " \
                times("torch", key "-graph" at, "amp", key "-graph" at) " | " \
                cell("torch-compile", key at) " | " \
                times("torch-compile", key at, "amp", key at) " |"
        }
}
function print_products(    i, k, word, key, at, line, head) {
    print "\nProducts of n x n matrices, ms [quartiles]; of: cublasGemmEx's speed on halves.\n"
    head = "| n | cublasSgemm | cublasGemmEx, halves |"
    for (k = 1; k <= kinds; k++) {
        split(kind[k], word, ":")
        head = head " amp_sgemm, " word[2] " | of |"
    }
    print head
    print columns(3 + 2 * kinds)
    for (i = 1; i <= edges; i++) {
        at = FS edge[i] FS 1
        line = "| " edge[i] " | " cell("cublas", "fp32" at) " | " cell("cublas", "halves" at) " |"
        for (k = 1; k <= kinds; k++) {
            split(kind[k], word, ":")
            key = "sgemm-" word[1] at
            line = line " " cell("amp", key) " | " times("cublas", "halves" at, "amp", key) " |"
        }
        print line
    }
}
# bar TEXT IS WANTED SENSE: more or less than wanted; is: a number, or none
function bar(text, is, wanted, sense) {
    printf "| %s | %s %s | ", text, sense, wanted
    if (is == none) print none " | |"
    else printf "%.3g | %s |\n", is,
        (sense == "at least" ? is >= wanted : is <= wanted) ? "yes" : "**no**"
}
function over(an, ak, bn, bk) {
    return ((an, ak) in value) && ((bn, bk) in value) ? value[an, ak] / value[bn, bk] : none
}
function print_bars(    i, at, part, s) {
    print "\n| bar | wanted | measured | met |"
    print columns(4)
    for (i = 1; i <= sizes; i++) {
        split(size[i], part, " ")
        at = FS part[1] FS part[2]
        if (part[1] >= 100000000)
            bar("step of " number(part[1]) ", speed of a copy",
                over("amp", "copy" at, "amp", "step" at), 0.95, "at least")
    }
    at = ",1000000,20"
    bar("step of 1 M in a graph, us",
        ("amp", "graph" at) in value ? 1000 * value["amp", "graph" at] : none, 15, "at most")
    at = ",124468000,148"
    bar("step of 124 M, PyTorch's time", over("torch", "step" at, "amp", "step" at), 1.7,
        "at least")
    bar("the same, both in a graph", over("torch", "graph" at, "amp", "graph" at), 1.7, "at least")
    bar("with clipping", over("torch", "step-clip" at, "amp", "step-clip" at), 2, "at least")
    bar("with clipping, both in a graph", over("torch", "graph-clip" at, "amp", "graph-clip" at), 2,
        "at least")
    bar("step with moments of 8 bits, speed of the default's",
        over("amp", "state-default" at, "amp", "state-8bit" at), 1.5, "at least")
    at = "-graph,512,6"
    s = over("amp", "mlp-norm" at, "amp", "mlp-scaler" at)
    bar("scaler's share of a step that has the norm, %", s == none ? none : 100 * (1 - s), 1,
        "at most")
    s = over("amp", "mlp-autocast" at, "amp", "mlp-scaler" at)
    bar("and of one that never looks at its gradients, %", s == none ? none : 100 * (1 - s), 1,
        "at most")
    bar("amp_sgemm 4096, speed of cublasGemmEx",
        over("cublas", "halves,4096,1", "amp", "sgemm-kept,4096,1"), 0.9, "at least")
}

function print_states(    i, at, what) {
    at = ",124468000,148"
    print "\n| state, 124 M | ms | speed of the default's |"
    print columns(3)
    for (i = 1; i <= states; i++) {
        what = "state-" state[i] at
        print "| " state[i] " | " cell("amp", what) " | " \
            times("amp", "state-default" at, "amp", what) " |"
    }
}

# beside TEXT NAME KEY PEER-TEXT PEER KEY
function beside(text, an, ak, peer, bn, bk) {
    print "| " text " | " cell(an, ak) " | " peer " | " times(an, ak, bn, bk) " |"
}
function print_others(    i, large, rows_at, word) {
    large = ",124468000,148"; rows_at = ",38597376,1"
    print "\n| also | ms | times that of | x |"
    print columns(4)
    beside("124 M, a report that samples one turn in 100", "amp", "report" large, "no report", "amp",
           "state-default" large)
    beside("that samples each", "amp", "sampled" large, "no report", "amp", "state-default" large)
    beside("8192 of 50257 rows of 768", "amp", "rows" rows_at, "all rows", "amp",
           "rows-all" rows_at)
    beside("8192 times the same row", "amp", "rows-same" rows_at, "all rows", "amp",
           "rows-all" rows_at)
    for (i = 1; i <= 2; i++) {
        word = i == 1 ? "step" : "step-clip"
        beside("PyTorch foreach, 124 M" (i == 1 ? "" : ", clipped"), "torch-foreach", word large,
               "amp.h", "amp", word large)
        beside("PyTorch compiled, 124 M" (i == 1 ? "" : ", clipped"), "torch-compile", word large,
               "amp.h", "amp", word large)
    }
}

function known(word) {return word in said ? said[word] : none}
END {
    if (form == "ratios") {
        for (i = 1; i <= rows; i++) ratios_of(who[i], order[i])
        exit
    }
    print "Device " known("device") ", driver " known("driver") ", CUDA " known("cuda") ", PyTorch " \
        known("torch") ", date " known("date") \
        "; " (commands ? "`" commands "`" : "command " none)
    print_bars()
    print_steps()
    print_states()
    print_others()
    print_arrays()
    print_network()
    print_products()
}
