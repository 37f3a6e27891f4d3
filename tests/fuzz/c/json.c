/* gf_json.c: a tree of any bytes is whole, and written out and read again it is the same tree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "gf_json.h"

static void write_tree(FILE *out, const gf_json *node) {
  if (node->key) fputc('"', out), gf_json_write(out, node->key), fputs("\": ", out);
  if (node->type == GF_JSON_STRING) fputc('"', out), gf_json_write(out, node->text), fputc('"', out);
  else if (node->text) fputs(node->text, out);
  if (node->type != GF_JSON_ARRAY && node->type != GF_JSON_OBJECT) return;
  fputc(node->type == GF_JSON_ARRAY ? '[' : '{', out);
  for (const gf_json *child = node->child; child; child = child->next) {
    write_tree(out, child);
    if (child->next) fputs(", ", out);
  }
  fputc(node->type == GF_JSON_ARRAY ? ']' : '}', out);
}

static void compare(const gf_json *a, const gf_json *b) {
  fuzz_require(a && b && a->type == b->type, "a written tree has the same nodes");
  fuzz_require(!a->key == !b->key && (!a->key || !strcmp(a->key, b->key)), "a written tree has the same keys");
  fuzz_require(!a->text == !b->text && (!a->text || !strcmp(a->text, b->text)), "a written tree has the same texts");
  for (a = a->child, b = b->child; a || b; a = a->next, b = b->next) compare(a, b);
}

static void ask(const gf_json *node) {
  int64_t value = -1;
  int is_whole = gf_json_whole(node, &value);
  fuzz_require(!is_whole || (node->type == GF_JSON_NUMBER && value >= 0), "only numbers are whole numbers");
  for (const gf_json *child = node->child; child; child = child->next) {
    fuzz_require(!child->key == (node->type == GF_JSON_ARRAY), "members of objects, and only they, have keys");
    fuzz_require(!child->key || gf_json_member(node, child->key), "a member is found by its key");
    if (child->key) gf_json_string(node, child->key);
    ask(child);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gf_json *tree = gf_json_parse((const char *)data, size);
  if (!tree) return 0;
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  write_tree(out, tree);
  fclose(out);
  gf_json *again = gf_json_parse(text, bytes);
  compare(tree, again);
  ask(tree);
  free(again);
  free(text);
  free(tree);
  return 0;
}
