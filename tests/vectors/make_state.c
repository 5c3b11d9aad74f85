/* make_state.c - writes the state files that state.json tells of, with amp.h: make_state DIRECTORY
   They are made anew where the format has a new version: cc -I. tests/vectors/make_state.c amp.c -lm */

#include "amp_subject.h"

int main(int argc, char **argv) {
    static subject_state t;
    char          path[512];
    char         *text;
    json         *file;
    const json   *cases, *c;
    size_t        i;
    int           bad = 0;
    snprintf(path, sizeof path, "%s/state.json", argc > 1 ? argv[1] : ".");
    text = json_file(path);
    file = text ? json_parse(text) : NULL;
    if (!file) return 1;
    cases = json_get(file, "cases");
    for (i = 0, c = json_first(cases); i < cases->size; i++, c = json_behind(c)) {
        amp_result result = state_open(&t, c, 0);
        if (result == AMP_OK) result = amp_optimizer_step(&t.opt, 0.0f);
        snprintf(path, sizeof path, "%s/%s", argc > 1 ? argv[1] : ".", json_get(json_get(c, "config"), "file")->text);
        if (result == AMP_OK) result = amp_optimizer_save_file(&t.opt, path);
        printf("%s: %s\n", path, amp_result_string(result));
        bad |= result != AMP_OK;
        amp_optimizer_free(&t.opt);
    }
    free(file);
    free(text);
    return bad;
}
