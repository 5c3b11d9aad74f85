# plain.awk - CUDA C++ behind the preprocessor to C++, for cuda_emu.h: launches, and shared memory whose
# size a launch says. A kernel's name and its <<< stand on one line.
#   kernel<<<grid, block>>>(arguments)       emu_plain(..., emu_config(grid, block))(arguments)
#   extern __shared__ float x[];             float *const x = (float *)emu_dynamic_shared;

function begin_of(text,   i, depth) { # of the kernel's name that ends the text
    for (i = length(text); substr(text, i, 1) == " "; i--) {}
    if (substr(text, i, 1) == ">")
        for (depth = 0; i > 0; i--) {
            if (substr(text, i, 1) == ">") depth++
            if (substr(text, i, 1) == "<" && --depth == 0) { i--; break }
        }
    while (i > 0 && substr(text, i, 1) ~ /[A-Za-z0-9_:]/) i--
    return i + 1
}

function refuse(what) {
    print "plain.awk: " what ": " $0 | "cat >&2"
    exit failed = 1
}

/extern +static|extern .*emu_shared/ && /\[ *\]/ {
    if (!match($0, /extern .*\[ *\] *;/)) refuse("not on one line")
    front = substr($0, 1, RSTART - 1)
    what  = substr($0, RSTART, RLENGTH)
    rest  = substr($0, RSTART + RLENGTH)
    gsub(/__attribute__ *\(\([^()]*(\([^()]*\))?\)\)|alignas *\([^()]*\)|extern |static |\[ *\] *;/, " ", what)
    sub(/ +$/, "", what)
    match(what, /[A-Za-z0-9_]+$/)
    name = substr(what, RSTART)
    type = substr(what, 1, RSTART - 1)
    $0 = front type "*const " name " = (" type "*)emu_dynamic_shared;" rest
}

{
    for (done = ""; match($0, open ? "> *> *>" : "<< *<");) {
        front = substr($0, 1, RSTART - 1)
        found = substr($0, RSTART, RLENGTH)
        $0    = substr($0, RSTART + RLENGTH)
        if (split(done front " ", quotes, "\"") % 2 == 0) { # in a string
            done = done front found
            continue
        }
        if (open) done = done front "))"
        else {
            at     = begin_of(front)
            kernel = substr(front, at)
            if (kernel !~ /[A-Za-z_]/) refuse("no kernel's name in front of <<<")
            done = done substr(front, 1, at - 1) "emu_plain([=](auto emu_c) -> " \
                "decltype(emu_typed(emu_c, " kernel ")) { return emu_typed(emu_c, " kernel "); }, " \
                "[=](auto... emu_a) { " kernel "(emu_a...); }, emu_config("
        }
        open = !open
    }
    print done $0
}

END {
    if (!failed && open) refuse("<<< without >>>")
    exit failed
}
