/* load_state.c - load_state state.json: loads each file whose name stands on a line of stdin into the optimizer of the first
   case, and prints a line for each: the result, and what desc.problem says. refusals.py asks state.py the same. */

#include "amp_subject.h"

int main(int argc, char **argv) {
    static subject_state t;
    char                 path[512], why[AMP_PROBLEM_SIZE];
    char                *text = json_file(argc > 1 ? argv[1] : "tests/vectors/state.json");
    json                *file = text ? json_parse(text) : NULL;
    if (!file || state_open(&t, json_first(json_get(file, "cases")), 1) != AMP_OK) return 1;
    t.opt.desc.problem = why;
    while (fgets(path, sizeof path, stdin)) {
        amp_result result;
        path[strcspn(path, "\n")] = '\0';
        why[0] = '\0';
        result = amp_optimizer_load_file(&t.opt, path);
        printf("%d %s\n", (int)result, why);
    }
    amp_optimizer_free(&t.opt);
    free(file);
    free(text);
    return 0;
}
