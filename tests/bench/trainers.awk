# trainers.awk - trainers.txt as a picture: a bar for each trainer, its speed beside its own, and both losses.
# usage: awk -f tests/bench/trainers.awk tests/bench/trainers.txt > tests/bench/trainers.svg

function text(x, y, class, words) {
    printf "  <text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, class ? " class=\"" class "\"" : "", words
}
function bar(x, y, width, height, class) {
    printf "  <rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" class=\"%s\"/>\n", x, y, width, height, class
}

BEGIN {
    FS = " *[|] *"
    left = 206 # where bars begin
    unit = 48  # wide is the speed of a trainer as it is
    top = 96
    step = 46
}
/^#/ || !NF { next }
NF != 8 || !($4 > 0 && $5 > 0 && $6 > 0 && $7 > 0) {
    print "trainers.awk: line " FNR ": 8 columns, " NF " here" > "/dev/stderr"
    exit failed = 1
}
{
    name[++n] = $1; what[n] = $2; lines[n] = $3
    fp32[n] = $5; bf16[n] = $4 / $6
    own_loss[n] = $7; loss[n] = $8
    apart = (own_loss[n] > loss[n] ? own_loss[n] - loss[n] : loss[n] - own_loss[n]) / own_loss[n]
    if (apart > most_apart) most_apart = apart
    if (bf16[n] > fastest) fastest = bf16[n]
    if (n == 1 || bf16[n] < slowest) slowest = bf16[n]
}
END {
    if (failed || !n) exit 1
    height = top + n * step + 46
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 %d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n", height
    title = sprintf("%d trainers with amp.h in bf16: %.1f to %.1f times as fast, loss within %d %%", n, slowest, fastest, int(100 * most_apart) + 1)
    print "  <title>" title "</title>"
    print "  <style>"
    print "    text{fill:#222}.soft{fill:#555}.head{font-size:17px;font-weight:bold}.name{font-weight:bold}.end{text-anchor:end}"
    print "    .paper{fill:#fcfcfa}.own{fill:#8a8a86}.fp32{fill:#a9c6e6}.bf16{fill:#2f6cab}"
    print "    @media(prefers-color-scheme:dark){text{fill:#eee}.soft{fill:#bbb}.paper{fill:#16171a}.own{fill:#77777c}.fp32{fill:#2c4a6b}"
    print "    .bf16{fill:#6fa8e2}}"
    print "  </style>"
    printf "  <rect width=\"720\" height=\"%d\" rx=\"10\" class=\"paper\"/>\n", height
    text(16, 32, "head", title)
    bar(16, 48, 11, 11, "own");   text(32, 58, "soft", "as it is")
    bar(112, 48, 11, 11, "fp32"); text(128, 58, "soft", "fp32, by amp.h (ggml, darknet: by OpenBLAS)")
    bar(464, 48, 11, 11, "bf16"); text(480, 58, "soft", "amp.h in bf16")
    text(left, 86, "soft", "speed"); text(634, 86, "soft end", "loss: as it is"); text(704, 86, "soft end", "bf16")
    for (i = 1; i <= n; i++) {
        y = top + (i - 1) * step
        text(16, y + 15, "name", name[i])
        text(16, y + 31, "soft", what[i])
        bar(left, y + 3, unit, 10, "own")
        bar(left, y + 16, fp32[i] * unit, 16, "fp32")
        bar(left + fp32[i] * unit, y + 16, (bf16[i] - fp32[i]) * unit, 16, "bf16")
        text(left + bf16[i] * unit + 6, y + 29, "name", sprintf("%.1f", bf16[i]))
        if (fp32[i] > 1) text(left + 6, y + 29, "", fp32[i])
        text(634, y + 29, "end", own_loss[i])
        text(704, y + 29, "end", loss[i])
    }
    text(16, height - 26, "soft", "One core of an AMD EPYC (Zen 4), gcc 12.2. Each trainer has 4 or 5 changed lines.")
    text(16, height - 9, "soft", "Figures, and how to measure them: tests/bench/trainers.txt")
    print "</svg>"
}
