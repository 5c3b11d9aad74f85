# Can a picture of a trainer be read? Prints what cannot, and ends with 1 then.
# usage: awk -v names=N -f picture.awk PICTURE.svg       N: curves, each of which has its name at its end
function say(problem) {
    print FILENAME ": " problem
    bad = 1
}
function light(color, i,    x, digits) { # of #rgb or #rrggbb: relative luminance (WCAG 2)
    if (length(color) == 4) gsub(/[0-9a-f]/, "&&", color)
    for (i = 0; i < 3; i++) {
        digits = "0123456789abcdef"
        x = (16 * index(digits, substr(color, 2 * i + 2, 1)) + index(digits, substr(color, 2 * i + 3, 1)) - 17) / 255
        part[i] = x <= 0.03928 ? x / 12.92 : exp(2.4 * log((x + 0.055) / 1.055))
    }
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2]
}
function color(style, what) {
    if (!match(style, "(^|[}])" what "[{][a-z]*:#[0-9a-f]*")) return say("no color of " what)
    style = substr(style, RSTART, RLENGTH)
    return substr(style, index(style, "#"))
}
function contrast(style,    i, what, count, a, b) {
    count = split("text [.]soft [.]b0 [.]b1 [.]b2 [.]b3 [.]b4 [.]c0 [.]c1 [.]c2 [.]c3 [.]c4", what, " ")
    for (i = 1; i <= count; i++) {
        a = light(color(style, what[i])) + 0.05
        b = light(color(style, "[.]paper")) + 0.05
        if ((a > b ? a / b : b / a) < 4.5) say(what[i] " can hardly be seen on paper: " style)
    }
}
function end_title() {
    if (lines > 1 && title !~ / /) say("a title ends in a lone word: " title)
    lines = 0
}
function from(attribute) { # its value in this tag
    match($0, " " attribute "=\"[^\"]*\"")
    return substr($0, RSTART + length(attribute) + 3, RLENGTH - length(attribute) - 4)
}
BEGIN {RS = "<"}
/^style>/ {
    styles++
    sub(/^style>/, "")
    at = index($0, "@media(prefers-color-scheme:dark){")
    contrast(substr($0, 1, at - 1))
    contrast(substr($0, at + 34))
}
/^text / {
    text = $0
    sub(/^[^>]*>/, "", text)
    sub(/\n$/, "", text)
    if (!/font-weight="bold"/) end_title()
    else lines++
    title = text
}
/^text x="12" / {
    px = 0
    for (i = 1; i <= length(text); i++) px += substr(text, i, 1) ~ /[ijl.,:;fIt ]/ ? 0.34 : 0.61
    if (px * from("font-size") * (/bold/ ? 1.1 : 1) > 480 - 16) say("is wider than the picture: " text)
    first = 1e9 # of a plot
    for (k in discs) delete discs[k]
    shown = segments = 0
}
/^line / && from("y1") == from("y2") {axis = from("x1")}
/^text .*text-anchor="end"/ && !/[\/]text|soft/ {
    px = 0
    for (i = 1; i <= length(text); i++) px += substr(text, i, 1) ~ /[ijl.,:;fIt ]/ ? 0.34 : 0.61
    if (px * 14 > from("x") + 0) say("is cut at its left: " text)
}
/^circle / {discs[substr(from("class"), 2)]++}
/^polyline class="c/ {
    k = substr(from("class"), 2)
    count = split(from("points"), points, " ")
    for (i = 1; i <= count; i++) {
        split(points[i], point, ",")
        first = point[1] < first ? point[1] : first
        if (i > 1) segment[++segments] = x1 " " y1 " " point[1] " " point[2]
        x1 = point[1]
        y1 = point[2]
    }
    end[k] = point[1]
}
/^text .* class="b[0-4]" font-size="13"/ {
    k = substr(from("class"), 2)
    found++
    if (first + 0 != axis + 0 && count > 1) say("its x axis does not begin where its data do, but at " first)
    if (count == 1 && !discs[k]) say(text " has one value, and no disc shows it")
    at = from("x") + 0 # a number: as texts 93.2 is more than 112.9
    if (at < axis + 0) say(text " stands on the labels of y")
    else if (at < end[k] - 30 || at > end[k] + 9) say(text " is not at its curve's end")
    right = at
    for (i = 1; i <= length(text); i++) right += 13 * (substr(text, i, 1) ~ /[ijl.,:;fIt ]/ ? 0.34 : 0.61)
    for (i = 1; i <= segments; i++) { # where a curve is above the name, from its left to its right
        split(segment[i], s, " ")
        if (s[1] + 0 > right || s[3] + 0 < at) continue
        by = (s[4] - s[2]) / (s[3] - s[1])
        a = s[2] + by * ((s[1] > at ? s[1] : at) - s[1])
        b = s[2] + by * ((s[3] < right ? s[3] : right) - s[1])
        if ((a > b ? a : b) > from("y") - 10 && (a < b ? a : b) < from("y") + 3) say("a curve crosses " text)
    }
    for (i = 0; i < shown; i++)
        if ((at - x[i]) ^ 2 < 30 ^ 2 && (from("y") - y[i]) ^ 2 < 14 ^ 2) say(text " is written over another name")
    x[shown] = at
    y[shown++] = from("y")
}
END {
    if (styles != 1) say("has no style")
    if (found != names) say("has " found + 0 " names of curves, not " names)
    exit bad
}
