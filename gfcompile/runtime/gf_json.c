#include "gf_json.h"

#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 32 };

typedef struct {
  const unsigned char *next, *end;
  gf_json *nodes; /* the next free one */
  char *texts;    /* where the next text goes: never longer than in the source */
} parser;

static void skip_space(parser *p) {
  while (p->next < p->end && (*p->next == ' ' || *p->next == '\n' || *p->next == '\r' || *p->next == '\t')) ++p->next;
}

static int take(parser *p, char letter) {
  skip_space(p);
  if (p->next == p->end || *p->next != (unsigned char)letter) return 0;
  ++p->next;
  return 1;
}

static int hex_digits(parser *p, unsigned *value) {
  if (p->end - p->next < 4) return 0;
  *value = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned digit = *p->next++, lower = digit | 32;
    if (digit >= '0' && digit <= '9') digit -= '0';
    else if (lower >= 'a' && lower <= 'f') digit = lower - 'a' + 10;
    else return 0;
    *value = *value << 4 | digit;
  }
  return 1;
}

static void put_letter(parser *p, unsigned code) {
  if (code < 0x80) *p->texts++ = (char)code;
  else if (code < 0x800) *p->texts++ = (char)(0xC0 | code >> 6);
  else if (code < 0x10000) *p->texts++ = (char)(0xE0 | code >> 12);
  else *p->texts++ = (char)(0xF0 | code >> 18), *p->texts++ = (char)(0x80 | (code >> 12 & 63));
  if (code >= 0x800) *p->texts++ = (char)(0x80 | (code >> 6 & 63));
  if (code >= 0x80) *p->texts++ = (char)(0x80 | (code & 63));
}

/* After the \u. */
static int unicode(parser *p) {
  unsigned code, low;
  if (!hex_digits(p, &code) || code == 0 || (code >= 0xDC00 && code < 0xE000)) return 0;
  if (code >= 0xD800 && code < 0xDC00) {
    if (p->end - p->next < 6 || *p->next++ != '\\' || *p->next++ != 'u') return 0;
    if (!hex_digits(p, &low) || low < 0xDC00 || low >= 0xE000) return 0;
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  put_letter(p, code);
  return 1;
}

static const char *string(parser *p) {
  static const char escapes[] = "\"\\/bfnrt", letters[] = "\"\\/\b\f\n\r\t";
  if (!take(p, '"')) return NULL;
  const char *start = p->texts;
  while (p->next < p->end && *p->next != '"') {
    unsigned char letter = *p->next++;
    if (letter < 0x20) return NULL;
    if (letter != '\\') {
      *p->texts++ = (char)letter;
      continue;
    }
    if (p->next == p->end) return NULL;
    letter = *p->next++;
    const char *found = letter ? strchr(escapes, letter) : NULL;
    if (found) *p->texts++ = letters[found - escapes];
    else if (letter != 'u' || !unicode(p)) return NULL;
  }
  if (p->next == p->end) return NULL;
  ++p->next;
  *p->texts++ = '\0';
  return start;
}

static int digits(const unsigned char **at, const unsigned char *end) {
  const unsigned char *start = *at;
  while (*at < end && **at >= '0' && **at <= '9') ++*at;
  return *at > start;
}

static int number(parser *p, gf_json *node) {
  const unsigned char *at = p->next, *start = at;
  if (at < p->end && *at == '-') ++at;
  const unsigned char *whole = at;
  if (!digits(&at, p->end) || (*whole == '0' && at > whole + 1)) return 0;
  if (at < p->end && *at == '.' && (++at, !digits(&at, p->end))) return 0;
  if (at < p->end && (*at | 32) == 'e') {
    if (++at < p->end && (*at == '+' || *at == '-')) ++at;
    if (!digits(&at, p->end)) return 0;
  }
  node->type = GF_JSON_NUMBER;
  node->text = p->texts;
  memcpy(p->texts, start, (size_t)(at - start));
  p->texts += at - start;
  *p->texts++ = '\0';
  p->next = at;
  return 1;
}

static int word(parser *p, gf_json *node) {
  static const char *const words[] = {"true", "false", "null"};
  for (int i = 0; i < 3; ++i) {
    size_t length = strlen(words[i]);
    if ((size_t)(p->end - p->next) < length || memcmp(p->next, words[i], length) != 0) continue;
    node->type = GF_JSON_WORD;
    node->text = words[i];
    p->next += length;
    return 1;
  }
  return 0;
}

static gf_json *value(parser *p, int depth);

static int members(parser *p, gf_json *node, int depth, char close) {
  gf_json **last = &node->child;
  if (take(p, close)) return 1;
  do {
    const char *key = NULL;
    if (close == '}' && (!(key = string(p)) || !take(p, ':'))) return 0;
    gf_json *child = value(p, depth + 1);
    if (!child) return 0;
    child->key = key;
    *last = child;
    last = &child->next;
  } while (take(p, ','));
  return take(p, close);
}

static gf_json *value(parser *p, int depth) {
  if (depth > DEEPEST) return NULL;
  gf_json *node = p->nodes++;
  skip_space(p);
  if (p->next == p->end) return NULL;
  if (*p->next == '"') {
    node->type = GF_JSON_STRING;
    return (node->text = string(p)) ? node : NULL;
  }
  if (take(p, '[')) {
    node->type = GF_JSON_ARRAY;
    return members(p, node, depth, ']') ? node : NULL;
  }
  if (take(p, '{')) {
    node->type = GF_JSON_OBJECT;
    return members(p, node, depth, '}') ? node : NULL;
  }
  return word(p, node) || number(p, node) ? node : NULL;
}

gf_json *gf_json_parse(const char *text, size_t bytes) {
  size_t values = 1; /* each value but the first follows a comma or an opening */
  for (size_t i = 0; i < bytes; ++i) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
  if (bytes > SIZE_MAX / 2 || values > SIZE_MAX / 4 / sizeof(gf_json)) return NULL;
  gf_json *nodes = calloc(1, values * sizeof *nodes + bytes + 1);
  if (!nodes) return NULL;
  parser p = {(const unsigned char *)text, (const unsigned char *)text + bytes, nodes, (char *)(nodes + values)};
  gf_json *root = value(&p, 0);
  skip_space(&p);
  if (root && p.next == p.end) return root;
  free(nodes);
  return NULL;
}

const gf_json *gf_json_member(const gf_json *object, const char *key) {
  if (!object || object->type != GF_JSON_OBJECT) return NULL;
  for (const gf_json *child = object->child; child; child = child->next)
    if (strcmp(child->key, key) == 0) return child;
  return NULL;
}

const char *gf_json_string(const gf_json *object, const char *key) {
  const gf_json *found = gf_json_member(object, key);
  return found && found->type == GF_JSON_STRING ? found->text : NULL;
}

int gf_json_whole(const gf_json *number, int64_t *value) {
  if (!number || number->type != GF_JSON_NUMBER) return 0;
  *value = 0;
  for (const char *at = number->text; *at; ++at) {
    if (*at < '0' || *at > '9' || *value > (INT64_C(1) << 62) / 10 - 1) return 0;
    *value = *value * 10 + (*at - '0');
  }
  return 1;
}

void gf_json_write(FILE *out, const char *text) {
  for (const unsigned char *at = (const unsigned char *)text; *at; ++at) {
    if (*at < 0x20) {
      fprintf(out, "\\u%04x", *at);
      continue;
    }
    if (*at == '"' || *at == '\\') fputc('\\', out);
    fputc(*at, out);
  }
}
