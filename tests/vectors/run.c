/* run.c - the vectors on amp.h: run FILE.json... To run them on another scaler, put its subject in the
   place of amp_subject.h. */

#include "amp_subject.h"

static void print(void *user, const json *c, int row) {
    const json *tags = json_get(c, "tags");
    size_t      i;
    (void)user;
    printf("  %s, %s (", json_get(c, "id")->text, json_get(c, "system")->text);
    for (i = 0; i < tags->size; i++) printf("%s%s", i ? ", " : "", json_at(tags, i)->text);
    printf("), row %d: %s\n", row, json_get(c, "comment")->text);
}

int main(int argc, char **argv) {
    static subject_state state;
    vectors_subject      subject = amp_subject(&state, 1);
    int             i, bad = 0;
    for (i = 1; i < argc; i++) {
        char          *text = json_file(argv[i]);
        json          *file = text ? json_parse(text) : NULL;
        vectors_result r;
        if (!file) {
            printf("FAIL %s: no such file, or no JSON\n", argv[i]);
            bad = 1;
            free(text);
            continue;
        }
        r = vectors_run(file, &subject, print, NULL);
        printf("%s %s: %d passed, %d failed, %d of systems that %s does not have, %d absent, %d that may be so are not\n",
               r.failed ? "FAIL" : r.passed ? "ok  " : "skip", json_get(file, "family")->text, r.passed, r.failed,
               r.lacking, subject.name, r.absent, r.others);
        bad |= r.failed != 0;
        free(file);
        free(text);
    }
    return bad;
}
