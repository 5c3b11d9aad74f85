/* golden.c - golden DIRECTORY: writes the files of state/ there, by amp.h, and says whether it reads them as they are.
   golden load NAME: loads each file whose path is a line of stdin into the optimizer of state/NAME.state, and prints a
   line for each: the result, and what amp_problem says. refusals.py asks state.py the same. */

#include "golden.h"

static golden made, again;

static int write_to(const char *directory, int which) {
    char       path[512];
    FILE      *file;
    amp_result result = golden_make(&made, which);
    int        ok;
    snprintf(path, sizeof path, "%s/%s.state", directory, golden_names[which]);
    file = result == AMP_OK ? fopen(path, "wb") : NULL;
    ok   = file && fwrite(made.bytes, 1, made.size, file) == made.size;
    if (file && fclose(file)) ok = 0;
    if (result == AMP_OK) result = golden_again(&again, which, made.bytes, made.size);
    ok = ok && result == AMP_OK && again.size == made.size && !memcmp(again.bytes, made.bytes, made.size);
    printf("%s %s: %s\n", ok ? "ok  " : "FAIL", path, result == AMP_OK ? "ok" : amp_problem());
    amp_optimizer_free(&made.opt);
    amp_optimizer_free(&again.opt);
    return ok;
}

static int load(const char *name) {
    char path[512];
    int  which = 0;
    while (which < GOLDEN_FILES - 1 && strcmp(golden_names[which], name)) which++;
    if (strcmp(golden_names[which], name) || golden_open(&again, which, 1) != AMP_OK) return 0;
    while (fgets(path, sizeof path, stdin)) {
        amp_result result;
        path[strcspn(path, "\n")] = '\0';
        result = amp_optimizer_load_file(&again.opt, path);
        printf("%d %s\n", (int)result, result == AMP_OK ? "" : amp_problem());
    }
    amp_optimizer_free(&again.opt);
    return 1;
}

int main(int argc, char **argv) {
    int which, ok = 1;
    if (argc == 3 && !strcmp(argv[1], "load")) return !load(argv[2]);
    if (argc != 2) return 2;
    for (which = 0; which < GOLDEN_FILES; which++) ok &= write_to(argv[1], which);
    return !ok;
}
