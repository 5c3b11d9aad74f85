# Print what preprocessed amp.h defines under names that end with _TIER; with a word, those whose names have it. A
# definition ends with a ; or a } outside of all braces. Pragmas stay in functions.
# usage: awk -v tier=avx2 [-v word=adamw] -f tier.awk; status 1: there is nothing
/^[ \t]*#/ { if (depth && /#pragma/) text = text $0 "\n"; next }
!NF { next }
{
    text = text $0 "\n"
    gsub(/"([^"\\]|\\.)*"/, "")
    depth += gsub(/[{]/, "") - gsub(/[}]/, "")
    if (depth || text !~ /[;}][ \t]*\n$/) next
    name = text
    sub(/[{=].*/, "", name)
    if (name ~ "[a-z0-9]_" tier "[^a-z0-9_]" && name ~ word "[a-z0-9_]*_" tier) { print text; found = 1 }
    text = ""
}
END { exit !found }
