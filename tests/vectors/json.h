/* json.h - reads the vectors: a document is a tree of nodes in one array, in the order of the text, so
   that a node's children stand behind it, and `next` leads past them. No escapes but \" and \\. */

#ifndef VECTORS_JSON_H
#define VECTORS_JSON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct json {
    char        kind; /* one of { [ " 0 for object, array, string, and number, true, false or null */
    const char *text; /* of a string, ended by a 0; of the others, ended by what follows              */
    const char *key;  /* of an object's member, else NULL */
    size_t      size; /* members or elements */
    size_t      next; /* nodes from this one to the one behind it and its children */
} json;

typedef struct json_reader {
    char  *at;
    json  *nodes;
    size_t count, room;
    int    bad, depth;
} json_reader;

static void json_blank(json_reader *r) { r->at += strspn(r->at, " \t\r\n"); }

/* The character that is next, if it is c: step over it. */
static int json_take(json_reader *r, char c) {
    json_blank(r);
    if (*r->at != c) return 0;
    r->at++;
    return 1;
}

/* A string in place: behind its first quote; ended by a 0. */
static const char *json_string(json_reader *r) {
    char *begin = r->at, *to = begin;
    while (*r->at != '"' && *r->at != '\0') {
        if (*r->at == '\\' && (r->at[1] == '"' || r->at[1] == '\\')) r->at++;
        *to++ = *r->at++;
    }
    if (*r->at == '\0') r->bad = 1;
    else r->at++;
    *to = '\0';
    return begin;
}

static size_t json_value(json_reader *r, const char *key);

static void json_children(json_reader *r, size_t node, char close) {
    if (json_take(r, close)) return;
    do {
        const char *key = NULL;
        if (close == '}') {
            r->bad |= !json_take(r, '"');
            if (r->bad) return;
            key = json_string(r);
            r->bad |= !json_take(r, ':');
        }
        json_value(r, key);
        r->nodes[node].size++;
    } while (!r->bad && json_take(r, ','));
    r->bad |= !json_take(r, close);
}

static size_t json_value(json_reader *r, const char *key) {
    const size_t node = r->count++;
    if (node == r->room) {
        json *more = (json *)realloc(r->nodes, 2 * (r->room + 512) * sizeof(json));
        if (!more) {
            fprintf(stderr, "json.h: no memory\n");
            exit(2);
        }
        r->nodes = more;
        r->room  = 2 * (r->room + 512);
    }
    memset(&r->nodes[node], 0, sizeof(json));
    r->nodes[node].key = key;
    json_blank(r);
    r->nodes[node].kind = *r->at;
    if (*r->at == '{' || *r->at == '[') {
        const char close = *r->at++ == '{' ? '}' : ']';
        if (++r->depth > 64) r->bad = 1;
        else json_children(r, node, close);
        r->depth--;
    } else if (json_take(r, '"')) {
        r->nodes[node].text = json_string(r);
    } else {
        const size_t length = strcspn(r->at, ",]} \t\r\n");
        r->nodes[node].kind = '0';
        r->nodes[node].text = r->at;
        r->bad |= length == 0;
        r->at += length;
    }
    r->nodes[node].next = r->count - node;
    return node;
}

/* A text that lives as long as its nodes, which free() releases; NULL if it is no JSON. */
static json *json_parse(char *text) {
    json_reader r;
    memset(&r, 0, sizeof r);
    r.at = text;
    json_value(&r, NULL);
    json_blank(&r);
    if (!r.bad && *r.at == '\0') return r.nodes;
    free(r.nodes);
    return NULL;
}

/* The text of a file; NULL if it cannot be read. */
static char *json_file(const char *path) {
    FILE  *file = fopen(path, "rb");
    char  *text = NULL;
    size_t size = 0, room = 0, got = 1;
    while (file && got) {
        if (room - size < 2) text = (char *)realloc(text, room = 2 * room + 65536);
        got = text ? fread(text + size, 1, room - size - 1, file) : 0;
        size += got;
    }
    if (file) fclose(file);
    if (text) text[size] = '\0';
    return text;
}

/* Children: the first, and the one behind; by key (NULL if it is not there), by index. */
static const json *json_first(const json *j) { return j + 1; }
static const json *json_behind(const json *j) { return j + j->next; }
static const json *json_get(const json *j, const char *key) {
    const json *c = json_first(j);
    size_t      i;
    for (i = 0; i < j->size; i++, c = json_behind(c))
        if (strcmp(c->key, key) == 0) return c;
    return NULL;
}
static const json *json_at(const json *j, size_t i) {
    const json *c = json_first(j);
    while (i--) c = json_behind(c);
    return c;
}

/* A number, written so or as a hex float or bits in a string; 0 for null and for what is missing. */
static double json_number(const json *j) {
    return j && j->text && (j->kind == '"' || *j->text != 'n') ? strtod(j->text, NULL) : 0.0;
}

#endif
