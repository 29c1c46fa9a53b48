/* helpers.c - calls each function of devbay_helpers.h, and says on standard error which is wrong.
 * C and C++. */
#include "devbay_helpers.h"

static int n_wrong = 0;

static void expect(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "wrong: %s\n", what);
        n_wrong++;
    }
}
#define EXPECT(condition) expect((condition) != 0, #condition)

static devbay_str text(const char *words) {
    devbay_str made;
    made.ptr = words;
    made.len = strlen(words);
    return made;
}

static void texts_and_options(void) {
    static const char *const words[] = {"a", "bc"};
    devbay_key_value pairs[2];
    devbay_list options;
    devbay_str empty = {NULL, 0};
    EXPECT(devbay_str_is(text("ab"), "ab") && !devbay_str_is(text("ab"), "a"));
    EXPECT(!devbay_str_is(text("a"), "ab"));
    EXPECT(devbay_str_is(empty, "") && !devbay_str_is(empty, "a"));
    EXPECT(devbay_str_is_one_of(text("bc"), words, 2) && !devbay_str_is_one_of(text("b"), words, 2));
    pairs[0].key = text("devbay.memory_limit");
    pairs[0].value = text("7");
    pairs[1].key = text("streams");
    pairs[1].value = text("4");
    options.ptr = pairs;
    options.len = 2;
    options.stride = sizeof(pairs[0]);
    EXPECT(devbay_find_option(&options, "stream") == NULL);
    EXPECT(devbay_find_option(&options, "streams") == &pairs[1].value);
    EXPECT(devbay_unknown_option(&options, NULL, 0) == &pairs[1].key);
    {
        static const char *const known[] = {"streams"};
        EXPECT(devbay_unknown_option(&options, known, 1) == NULL);
    }
}

static void errors(void) {
    char place[8];
    devbay_error_detail error;
    memset(&error, 0, sizeof(error));
    memset(place, 'x', sizeof(place));
    error.struct_size = (uint32_t)sizeof(error);
    error.text = place;
    error.text_capacity = 4;
    EXPECT(devbay_fail(&error, DEVBAY_STATUS_INVALID, "%d and \xc3\xa4", 12) == DEVBAY_STATUS_INVALID);
    EXPECT(error.status == DEVBAY_STATUS_INVALID && error.text_len == 9);
    EXPECT(memcmp(place, "12 axxxx", 8) == 0);
    EXPECT(devbay_fail(NULL, DEVBAY_STATUS_UNKNOWN, "nobody asked") == DEVBAY_STATUS_UNKNOWN);
}

static void attributes(void) {
    static const char *const known[] = {"axis", "mode"};
    /* Elements that are larger than this header's. */
    struct {
        devbay_attr attr;
        uint64_t later;
    } list[3];
    static const int64_t ints[] = {5, 6};
    devbay_list attrs, found;
    devbay_str mode;
    int64_t axis = 0;
    double alpha = 0;
    memset(list, 0, sizeof(list));
    list[0].attr.name = text("axis");
    list[0].attr.kind = DEVBAY_ATTR_INT;
    list[0].attr.i = -3;
    list[1].attr.name = text("mode");
    list[1].attr.kind = DEVBAY_ATTR_STRING;
    list[1].attr.s = text("linear");
    list[2].attr.name = text("pads");
    list[2].attr.kind = DEVBAY_ATTR_INTS;
    list[2].attr.list.ptr = ints;
    list[2].attr.list.len = 2;
    list[2].attr.list.stride = sizeof(ints[0]);
    attrs.ptr = list;
    attrs.len = 3;
    attrs.stride = sizeof(list[0]);
    EXPECT(devbay_find_attr(&attrs, "mode") == &list[1].attr);
    EXPECT(devbay_find_attr(&attrs, "ax") == NULL);
    EXPECT(devbay_unknown_attr(&attrs, known, 2) == &list[2].attr);
    EXPECT(devbay_int_attr(&attrs, "axis", 1, &axis) && axis == -3);
    EXPECT(devbay_int_attr(&attrs, "group", 1, &axis) && axis == 1);
    EXPECT(!devbay_int_attr(&attrs, "mode", 1, &axis));
    EXPECT(devbay_float_attr(&attrs, "alpha", 0.5, &alpha) && alpha == 0.5);
    EXPECT(!devbay_float_attr(&attrs, "axis", 0.5, &alpha));
    EXPECT(devbay_string_attr(&attrs, "mode", "nearest", &mode) && devbay_str_is(mode, "linear"));
    EXPECT(devbay_string_attr(&attrs, "none", "nearest", &mode) && devbay_str_is(mode, "nearest"));
    EXPECT(!devbay_string_attr(&attrs, "axis", "nearest", &mode));
    EXPECT(devbay_ints_attr(&attrs, "pads", &found) && found.len == 2);
    EXPECT(*(const int64_t *)DEVBAY_AT(&found, 1) == 6);
    EXPECT(devbay_ints_attr(&attrs, "strides", &found) && found.len == 0);
    EXPECT(!devbay_ints_attr(&attrs, "axis", &found));
}

static void operands(void) {
    static const int64_t shape[] = {2, 3, 4}, empty[] = {0, INT64_MAX};
    static const int64_t unknown[] = {2, -1}, large[] = {INT64_MAX, 4};
    devbay_tensor list[2];
    devbay_list all;
    uint64_t n = 0;
    memset(list, 0, sizeof(list));
    list[0].rank = 3;
    list[0].shape = shape;
    list[0].dtype.code = DEVBAY_DTYPE_FLOAT;
    list[0].dtype.bits = 32;
    list[0].dtype.lanes = 1;
    list[1] = list[0];
    all.ptr = list;
    all.len = 2;
    all.stride = sizeof(list[0]);
    EXPECT(devbay_operand(&all, 1) == &list[1] && devbay_operand(&all, 2) == NULL);
    EXPECT(devbay_is_dense(&list[0], DEVBAY_DTYPE_FLOAT, 32));
    EXPECT(!devbay_is_dense(&list[0], DEVBAY_DTYPE_FLOAT, 16));
    EXPECT(devbay_n_elements(&list[0], 24, &n) && n == 24 && !devbay_n_elements(&list[0], 23, &n));
    EXPECT(devbay_same_shape(&list[0], &list[1]));
    list[1].rank = 2;
    EXPECT(!devbay_same_shape(&list[0], &list[1]));
    list[1].shape = unknown;
    EXPECT(!devbay_n_elements(&list[1], 100, &n));
    list[1].shape = large;
    EXPECT(!devbay_n_elements(&list[1], UINT64_MAX, &n));
    list[1].shape = empty;
    EXPECT(devbay_n_elements(&list[1], UINT64_MAX, &n) && n == 0);
    EXPECT(!devbay_n_elements(&list[1], 100, &n));
    list[1].rank = 0;
    EXPECT(devbay_n_elements(&list[1], 1, &n) && n == 1);
    list[1].flags = DEVBAY_TENSOR_ABSENT;
    EXPECT(devbay_operand(&all, 1) == NULL);
    list[0].strides = shape;
    EXPECT(!devbay_is_dense(&list[0], DEVBAY_DTYPE_FLOAT, 32));
}

int main(void) {
    texts_and_options();
    errors();
    attributes();
    operands();
    return n_wrong != 0;
}
