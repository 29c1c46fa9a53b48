/* What devbay.h promises, from C: all MODEL FOLDER, with models/mnist_cnn/model.onnx and a folder for files.
 *
 * Built with AddressSanitizer and UndefinedBehaviorSanitizer. Ends with 1 at the first promise that is not kept. */
#include <devbay.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                                                             \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "all.c:%d: not so: %s\n", __LINE__, #condition);                                          \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

#define OK(call) ok((call), __LINE__)
#define FAILS(call, kind) fails((call), (kind), NULL, __LINE__)
/* The message has these words. */
#define FAILS_WITH(call, kind, words) fails((call), (kind), (words), __LINE__)

static void ok(devbay_error *error, int line) {
    if (error == NULL) return;
    fprintf(stderr, "all.c:%d: %s: %s\n", line, devbay_error_kind_name(error), devbay_error_message(error));
    exit(1);
}

static void fails(devbay_error *error, devbay_error_kind_t kind, const char *words, int line) {
    if (error == NULL || devbay_error_kind(error) != kind ||
        (words != NULL && strstr(devbay_error_message(error), words) == NULL)) {
        fprintf(stderr, "all.c:%d: expected an error of kind %u with `%s`, found %u: %s\n", line, kind,
                words ? words : "", devbay_error_kind(error), error ? devbay_error_message(error) : "none");
        exit(1);
    }
    devbay_error_destroy(error);
}

static const char *NEGATE = "devbay-program 1\nprogram \"negate\"(%x: f32[2, 3]) {\n"
                            "    %y: f32[2, 3] = Neg@13(%x)\n    return %y\n}\n";
static const char *OPEN = "devbay-program 1\nprogram \"open\"(%x: f32[n]) {\n"
                          "    %y: f32[n] = Neg@13(%x)\n    return %y\n}\n";

static const char *DRAW = "devbay-program 1\nprogram \"draw\"(%devbay.seed: u32[4]) {\n"
                          "    %n = const i64[1] [3]\n"
                          "    %y: f32[3] = devbay.Philox@1(%devbay.seed, %n) {stream = 0}\n    return %y\n}\n";

static devbay_model *model_of(const char *text) {
    devbay_model *model;
    OK(devbay_model_from_bytes((const uint8_t *)text, strlen(text), &model));
    return model;
}

static devbay_session *session_of(devbay_runtime *runtime, const char *text) {
    devbay_model *model = model_of(text);
    devbay_session *session;
    OK(devbay_session_create(runtime, model, NULL, &session));
    /* The session keeps what it needs. */
    devbay_model_destroy(model);
    return session;
}

static devbay_options *options_of(const char *key, const char *value) {
    devbay_options *options;
    OK(devbay_options_create(&options));
    OK(devbay_options_set(options, key, value));
    return options;
}

static devbay_value *floats(const int64_t *extents, size_t rank, float *data, size_t n) {
    devbay_value *value;
    OK(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, rank, data, n * sizeof *data, DEVBAY_WRITABLE, NULL, NULL, &value));
    return value;
}

static const float *elements(const devbay_value *value, size_t n) {
    const void *data;
    size_t size;
    OK(devbay_value_data(value, &data, &size));
    EXPECT(size == n * sizeof(float));
    return data;
}

static void count_release(void *user_data) { atomic_fetch_add((atomic_int *)user_data, 1); }

static void options_and_runtimes(const char *no_plugin) {
    devbay_options *options = options_of("threads", "2");
    FAILS_WITH(devbay_options_set(options, "thread", "2"), DEVBAY_ERROR_INVALID_ARGUMENT, "threads");
    FAILS(devbay_options_set(options, NULL, "2"), DEVBAY_ERROR_INVALID_ARGUMENT);
    FAILS_WITH(devbay_options_set(options, "threads", "\xff"), DEVBAY_ERROR_INVALID_ARGUMENT, "UTF-8");
    devbay_runtime *runtime;
    OK(devbay_runtime_create(options, &runtime));
    EXPECT(devbay_runtime_n_devices(runtime) == 1);
    char *report;
    OK(devbay_runtime_report(runtime, &report));
    EXPECT(strstr(report, "\"threads\":2") != NULL && strstr(report, "\"cpu:0\"") != NULL);
    devbay_text_free(report);
    devbay_runtime_destroy(runtime);

    OK(devbay_options_set(options, "threads", "many"));
    FAILS_WITH(devbay_runtime_create(options, &runtime), DEVBAY_ERROR_INVALID_ARGUMENT, "found `many`");
    EXPECT(runtime == NULL);
    OK(devbay_options_set(options, "threads", "1"));
    OK(devbay_options_set(options, "device", "cpu:0"));
    FAILS_WITH(devbay_runtime_create(options, &runtime), DEVBAY_ERROR_INVALID_ARGUMENT, "is for a session");
    FAILS(devbay_runtime_create(NULL, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    devbay_options_destroy(options);
    FAILS_WITH(devbay_options_set(options, "threads", "2"), DEVBAY_ERROR_INVALID_ARGUMENT, "destroyed before");

    /* A plugin that is not there is a line in the report, with the reason. */
    options = options_of("plugin", "/nowhere/libdevbay_plugin_none.so");
    OK(devbay_runtime_create(options, &runtime));
    OK(devbay_runtime_report(runtime, &report));
    EXPECT(strstr(report, "\"refused\"") != NULL);
    devbay_text_free(report);
    devbay_options_destroy(options);
    devbay_runtime_destroy(runtime);

    /* The program that tries plugins is found beside the library. */
    options = options_of("probe", "try");
    OK(devbay_options_set(options, "plugin", no_plugin));
    OK(devbay_runtime_create(options, &runtime));
    OK(devbay_runtime_report(runtime, &report));
    EXPECT(strstr(report, "\"refused\"") != NULL);
    devbay_text_free(report);
    devbay_options_destroy(options);
    devbay_runtime_destroy(runtime);
}

static void devices(devbay_runtime *runtime) {
    devbay_device *device;
    OK(devbay_runtime_device(runtime, 0, &device));
    EXPECT(strcmp(devbay_device_name(device), "cpu:0") == 0 && strcmp(devbay_device_kind(device), "cpu") == 0);
    EXPECT(strlen(devbay_device_product(device)) > 0);
    uint64_t in_use = 1, peak = 0;
    OK(devbay_device_memory(device, &in_use, &peak));
    EXPECT(in_use <= peak);
    devbay_device_destroy(device);
    EXPECT(devbay_device_name(device) == NULL);
    FAILS(devbay_runtime_device(runtime, 9, &device), DEVBAY_ERROR_NOT_FOUND);
    EXPECT(device == NULL);
    char *explanation;
    OK(devbay_runtime_choose(runtime, "auto", NULL, &device, &explanation));
    EXPECT(strstr(explanation, "\"chosen\":true") != NULL);
    devbay_text_free(explanation);
    devbay_device_destroy(device);
    FAILS(devbay_runtime_choose(runtime, "npu:7", NULL, &device, NULL), DEVBAY_ERROR_NOT_FOUND);
    FAILS(devbay_runtime_choose(runtime, "prefer:banana", NULL, &device, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
}

static void models(const char *path) {
    devbay_model *model;
    OK(devbay_model_load(path, NULL, &model));
    devbay_model_destroy(model);
    FAILS(devbay_model_load("/nowhere/model.onnx", NULL, &model), DEVBAY_ERROR_IO);
    devbay_error *error = devbay_model_load("/nowhere/model.onnx", NULL, &model);
    EXPECT(strcmp(devbay_error_file(error), "/nowhere/model.onnx") == 0 && devbay_error_cause(error, 0) != NULL);
    EXPECT(devbay_error_cause(error, 99) == NULL && strcmp(devbay_error_kind_name(error), "io") == 0);
    devbay_error_destroy(error);
    EXPECT(devbay_error_kind(error) == 0 && devbay_error_message(error) == NULL);
    FAILS(devbay_model_from_bytes((const uint8_t *)"not a model", 11, &model), DEVBAY_ERROR_INVALID_MODEL);
    FAILS(devbay_model_from_bytes(NULL, 11, &model), DEVBAY_ERROR_INVALID_ARGUMENT);
    devbay_options *options = options_of("checks", "weights");
    OK(devbay_model_load(path, options, &model));
    devbay_model_destroy(model);
    devbay_options_destroy(options);
}

static void values(void) {
    const int64_t extents[] = {2, 3};
    devbay_value *value;
    OK(devbay_value_create(DEVBAY_DTYPE_F32, extents, 2, &value));
    EXPECT(devbay_value_kind(value) == DEVBAY_VALUE_TENSOR && devbay_value_device(value) == NULL);
    devbay_dtype type;
    const int64_t *found;
    size_t rank;
    OK(devbay_value_type(value, &type, &found, &rank));
    EXPECT(type == DEVBAY_DTYPE_F32 && rank == 2 && found[0] == 2 && found[1] == 3);
    void *data;
    OK(devbay_value_data_mut(value, &data, NULL));
    ((float *)data)[5] = 7;
    EXPECT(elements(value, 6)[5] == 7 && elements(value, 6)[0] == 0);

    /* Another value shares the memory; then it may not be written. */
    devbay_value *shared;
    OK(devbay_value_to_host(value, &shared));
    EXPECT(elements(shared, 6) == elements(value, 6));
    FAILS(devbay_value_data_mut(value, &data, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    devbay_value_destroy(shared);
    OK(devbay_value_data_mut(value, &data, NULL));
    devbay_value_destroy(value);
    devbay_value_destroy(value);
    EXPECT(devbay_value_kind(value) == 0);
    FAILS_WITH(devbay_value_data(value, (const void **)&data, NULL), DEVBAY_ERROR_INVALID_ARGUMENT, "destroyed");
    /* An address is no handle. */
    FAILS(devbay_value_data((const devbay_value *)&extents, (const void **)&data, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);

    FAILS(devbay_value_create(12345, extents, 2, &value), DEVBAY_ERROR_INVALID_ARGUMENT);
    const int64_t negative[] = {-1}, huge[] = {INT64_MAX, INT64_MAX};
    FAILS(devbay_value_create(DEVBAY_DTYPE_F32, negative, 1, &value), DEVBAY_ERROR_INVALID_ARGUMENT);
    FAILS(devbay_value_create(DEVBAY_DTYPE_F32, huge, 2, &value), DEVBAY_ERROR_OUT_OF_MEMORY);
    FAILS(devbay_value_create(DEVBAY_DTYPE_F32, NULL, 2, &value), DEVBAY_ERROR_INVALID_ARGUMENT);
    OK(devbay_value_create(DEVBAY_DTYPE_F32, NULL, 0, &value));
    devbay_value_destroy(value);

    /* Memory of the program's is released once, also after an error. */
    atomic_int released = 0;
    _Alignas(16) float memory[6] = {1, 2, 3, 4, 5, 6};
    OK(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, 2, memory, sizeof memory, 0, count_release, &released, &value));
    EXPECT(elements(value, 6) == memory);
    FAILS_WITH(devbay_value_data_mut(value, &data, NULL), DEVBAY_ERROR_INVALID_ARGUMENT, "read-only");
    EXPECT(released == 0);
    devbay_value_destroy(value);
    EXPECT(released == 1);
    FAILS_WITH(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, 2, memory, 20, 0, count_release, &released, &value),
               DEVBAY_ERROR_INVALID_ARGUMENT, "24 bytes, found 20");
    EXPECT(released == 2 && value == NULL);
    FAILS_WITH(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, 1, (char *)memory + 1, 8, 0, NULL, NULL, &value),
               DEVBAY_ERROR_INVALID_ARGUMENT, "aligned");
    FAILS(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, 1, NULL, 8, 0, NULL, NULL, &value), DEVBAY_ERROR_INVALID_ARGUMENT);
    FAILS(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, 1, memory, 8, 64, NULL, NULL, &value),
          DEVBAY_ERROR_INVALID_ARGUMENT);
    const int64_t empty[] = {0, 3};
    OK(devbay_value_wrap(DEVBAY_DTYPE_F32, empty, 2, NULL, 0, 0, NULL, NULL, &value));
    devbay_value_destroy(value);
}

static void runs(devbay_runtime *runtime) {
    devbay_session *session = session_of(runtime, NEGATE);
    const int64_t extents[] = {2, 3}, other[] = {3, 2};
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
    devbay_value *input = floats(extents, 2, x, 6), *output = floats(extents, 2, y, 6), *none = NULL;
    const devbay_value *inputs[] = {input};

    /* Results are written where the program wants them. */
    OK(devbay_session_run(session, inputs, 1, &output, 1, NULL));
    EXPECT(y[0] == -1 && y[5] == -6);
    x[0] = 10;
    OK(devbay_session_run(session, inputs, 1, &output, 1, NULL));
    EXPECT(y[0] == -10);
    /* Or they are new values. */
    OK(devbay_session_run(session, inputs, 1, &none, 1, NULL));
    EXPECT(elements(none, 6)[1] == -2);
    devbay_value_destroy(none);
    none = NULL;

    FAILS(devbay_session_run(session, inputs, 0, &none, 1, NULL), DEVBAY_ERROR_INVALID_INPUT);
    FAILS(devbay_session_run(session, inputs, 1, &none, 0, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    FAILS(devbay_session_run(session, NULL, 1, &none, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    FAILS(devbay_session_run(NULL, inputs, 1, &none, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    /* Memory of the input is no place for the result, nor is a value of another type. */
    FAILS_WITH(devbay_session_run(session, inputs, 1, &input, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT, "also an input");
    devbay_value *turned = floats(other, 2, y, 6), *overlapping = floats(extents, 2, x, 6), *ints;
    FAILS_WITH(devbay_session_run(session, inputs, 1, &turned, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT, "f32[3,2]");
    FAILS(devbay_session_run(session, inputs, 1, &overlapping, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    OK(devbay_value_create(DEVBAY_DTYPE_I32, extents, 2, &ints));
    FAILS(devbay_session_run(session, inputs, 1, &ints, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    const devbay_value *wrong[] = {ints}, *rank[] = {NULL};
    FAILS_WITH(devbay_session_run(session, wrong, 1, &none, 1, NULL), DEVBAY_ERROR_INVALID_INPUT, "i32[2,3]");
    FAILS(devbay_session_run(session, rank, 1, &none, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    EXPECT(none == NULL);
    devbay_value_destroy(ints);
    devbay_value_destroy(overlapping);
    devbay_value_destroy(turned);

    /* Options of runs. */
    devbay_cancel *cancel;
    OK(devbay_cancel_create(&cancel));
    devbay_run_options options = {.struct_size = sizeof options, .cancel = cancel};
    OK(devbay_session_run(session, inputs, 1, &output, 1, &options));
    OK(devbay_cancel_set(cancel));
    FAILS(devbay_session_run(session, inputs, 1, &output, 1, &options), DEVBAY_ERROR_CANCELLED);
    devbay_cancel_destroy(cancel);
    FAILS(devbay_session_run(session, inputs, 1, &output, 1, &options), DEVBAY_ERROR_INVALID_ARGUMENT);
    options = (devbay_run_options){.struct_size = sizeof options, .deadline_ns = UINT64_C(60000000000)};
    OK(devbay_session_run(session, inputs, 1, &output, 1, &options));
    options.struct_size = 8;
    FAILS_WITH(devbay_session_run(session, inputs, 1, &output, 1, &options), DEVBAY_ERROR_INVALID_ARGUMENT, "struct_size");
    options = (devbay_run_options){.struct_size = sizeof options, .flags = 64};
    FAILS(devbay_session_run(session, inputs, 1, &output, 1, &options), DEVBAY_ERROR_INVALID_ARGUMENT);
    options.flags = DEVBAY_RUN_RESULTS_ON_DEVICE;
    FAILS(devbay_session_run(session, inputs, 1, &output, 1, &options), DEVBAY_ERROR_INVALID_ARGUMENT);
    OK(devbay_session_run(session, inputs, 1, &none, 1, &options));
    devbay_value *host, *device_value = none;
    OK(devbay_value_to_host(device_value, &host));
    EXPECT(elements(host, 6)[5] == -6);
    devbay_value_destroy(host);
    devbay_value_destroy(device_value);

    /* Bound to memory. */
    devbay_bound *bound;
    OK(devbay_session_bind(session, inputs, 1, &output, 1, &bound));
    x[2] = 30;
    OK(devbay_bound_run(bound, NULL));
    EXPECT(y[2] == -30);
    options = (devbay_run_options){.struct_size = sizeof options, .deadline_ns = 1};
    FAILS(devbay_bound_run(bound, &options), DEVBAY_ERROR_INVALID_ARGUMENT);
    /* It keeps the values and the session. */
    devbay_value_destroy(input);
    devbay_value_destroy(output);
    devbay_session_destroy(session);
    x[2] = 40;
    OK(devbay_bound_run(bound, NULL));
    EXPECT(y[2] == -40);
    devbay_bound_destroy(bound);
    FAILS(devbay_bound_run(bound, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    FAILS(devbay_session_run(session, inputs, 1, &output, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
}

static void random_numbers(devbay_runtime *runtime) {
    devbay_model *model = model_of(DRAW);
    devbay_options *options = options_of("seed", "5");
    devbay_session *session;
    OK(devbay_session_create(runtime, model, options, &session));
    const int64_t extents[] = {3};
    float first[3], second[3], again[3];
    devbay_value *outputs[] = {floats(extents, 1, first, 3), floats(extents, 1, second, 3), floats(extents, 1, again, 3)};
    OK(devbay_session_run(session, NULL, 0, &outputs[0], 1, NULL));
    OK(devbay_session_run(session, NULL, 0, &outputs[1], 1, NULL));
    EXPECT(memcmp(first, second, sizeof first) != 0);
    /* One run with the session's own seed is as its first run. */
    devbay_run_options run = {.struct_size = sizeof run, .flags = DEVBAY_RUN_SEED, .seed = 5};
    OK(devbay_session_run(session, NULL, 0, &outputs[2], 1, &run));
    EXPECT(memcmp(first, again, sizeof first) == 0);
    devbay_bound *bound;
    FAILS(devbay_session_bind(session, NULL, 0, outputs, 1, &bound), DEVBAY_ERROR_UNSUPPORTED_OP);
    for (int i = 0; i < 3; i++) devbay_value_destroy(outputs[i]);
    devbay_session_destroy(session);
    devbay_options_destroy(options);
    devbay_model_destroy(model);
}

static void open_extents(devbay_runtime *runtime) {
    devbay_session *session = session_of(runtime, OPEN);
    devbay_port port = {.struct_size = sizeof port};
    OK(devbay_session_input(session, 0, &port));
    EXPECT(strcmp(port.name, "x") == 0 && port.type == DEVBAY_DTYPE_F32 && port.rank == 1 && port.extents[0] == -1);
    EXPECT(strcmp(port.symbols[0], "n") == 0 && port.struct_size == sizeof port);
    OK(devbay_session_output(session, 0, &port));
    EXPECT(strcmp(port.name, "y") == 0);
    FAILS(devbay_session_output(session, 1, &port), DEVBAY_ERROR_NOT_FOUND);
    port.struct_size = 4;
    FAILS(devbay_session_input(session, 0, &port), DEVBAY_ERROR_INVALID_ARGUMENT);
    /* A program with a later header has a larger struct. */
    struct {
        devbay_port port;
        int64_t later;
    } larger = {.port = {.struct_size = sizeof larger}, .later = 7};
    OK(devbay_session_input(session, 0, &larger.port));
    EXPECT(strcmp(larger.port.name, "x") == 0 && larger.port.struct_size == sizeof port && larger.later == 7);
    size_t i = 9;
    OK(devbay_session_find_input(session, "x", &i));
    EXPECT(i == 0);
    FAILS_WITH(devbay_session_find_input(session, "z", &i), DEVBAY_ERROR_NOT_FOUND, "it has x");
    OK(devbay_session_find_output(session, "y", &i));
    EXPECT(devbay_session_n_inputs(session) == 1 && devbay_session_n_outputs(session) == 1);
    EXPECT(devbay_session_n_inputs(NULL) == 0);

    /* Results of open extents are copied to the program's memory, if it fits. */
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    for (int64_t n = 1; n <= 4; n++) {
        devbay_value *input = floats(&n, 1, x, (size_t)n), *output = floats(&n, 1, y, (size_t)n);
        const devbay_value *inputs[] = {input};
        OK(devbay_session_run(session, inputs, 1, &output, 1, NULL));
        EXPECT(y[n - 1] == -x[n - 1]);
        devbay_value_destroy(output);
        const int64_t more = 5;
        OK(devbay_value_create(DEVBAY_DTYPE_F32, &more, 1, &output));
        FAILS_WITH(devbay_session_run(session, inputs, 1, &output, 1, NULL), DEVBAY_ERROR_INVALID_ARGUMENT, "f32[5]");
        devbay_bound *bound;
        FAILS(devbay_session_bind(session, inputs, 1, &output, 1, &bound), DEVBAY_ERROR_UNSUPPORTED_OP);
        char *plan;
        OK(devbay_session_plan(session, inputs, 1, &plan));
        EXPECT(strstr(plan, "\"stages\"") != NULL);
        devbay_text_free(plan);
        devbay_value_destroy(output);
        devbay_value_destroy(input);
    }
    char *explanation;
    OK(devbay_session_explain(session, &explanation));
    EXPECT(strstr(explanation, "cpu:0") != NULL);
    devbay_text_free(explanation);
    devbay_device *device;
    OK(devbay_session_device(session, &device));
    EXPECT(strcmp(devbay_device_name(device), "cpu:0") == 0);
    devbay_device_destroy(device);
    devbay_session_destroy(session);
}

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int n_ended;
    int n_failed;
    float sum;
} Ended;

static void ended(void *user_data, devbay_error *error, devbay_value *const *outputs, size_t n) {
    Ended *all = user_data;
    pthread_mutex_lock(&all->mutex);
    all->n_ended++;
    all->n_failed += error != NULL;
    if (error == NULL) {
        EXPECT(n == 1);
        all->sum += elements(outputs[0], 6)[0];
        devbay_value_destroy(outputs[0]);
    }
    devbay_error_destroy(error);
    pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->mutex);
}

static void in_the_background(devbay_runtime *runtime) {
    devbay_session *session = session_of(runtime, NEGATE);
    const int64_t extents[] = {2, 3};
    atomic_int released = 0;
    float x[6] = {1, 2, 3, 4, 5, 6};
    devbay_value *input;
    OK(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, 2, x, sizeof x, 0, count_release, &released, &input));
    const devbay_value *inputs[] = {input};
    Ended all = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    enum { RUNS = 50 };
    for (int i = 0; i < RUNS; i++) OK(devbay_session_start(session, inputs, 1, NULL, ended, &all, NULL));
    pthread_mutex_lock(&all.mutex);
    while (all.n_ended < RUNS) pthread_cond_wait(&all.changed, &all.mutex);
    EXPECT(all.n_failed == 0 && all.sum == -RUNS);
    pthread_mutex_unlock(&all.mutex);

    devbay_run *run;
    OK(devbay_session_start(session, inputs, 1, NULL, NULL, NULL, &run));
    /* The run keeps the session and the memory. */
    devbay_value_destroy(input);
    devbay_session_destroy(session);
    bool has_ended = false;
    OK(devbay_run_wait(run, UINT64_MAX, &has_ended));
    EXPECT(has_ended);
    devbay_value *result;
    OK(devbay_run_results(run, &result, 1));
    EXPECT(elements(result, 6)[3] == -4);
    FAILS(devbay_run_results(run, &result, 2), DEVBAY_ERROR_INVALID_ARGUMENT);
    devbay_value_destroy(result);
    OK(devbay_run_cancel(run));
    devbay_run_destroy(run);
    FAILS(devbay_run_wait(run, 0, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
    EXPECT(released == 1);

    /* A failure comes to the callback, too. */
    session = session_of(runtime, NEGATE);
    devbay_cancel *cancel;
    OK(devbay_cancel_create(&cancel));
    OK(devbay_cancel_set(cancel));
    devbay_run_options options = {.struct_size = sizeof options, .cancel = cancel};
    OK(devbay_value_create(DEVBAY_DTYPE_F32, extents, 2, &input));
    inputs[0] = input;
    OK(devbay_session_start(session, inputs, 1, &options, ended, &all, NULL));
    pthread_mutex_lock(&all.mutex);
    while (all.n_ended < RUNS + 1) pthread_cond_wait(&all.changed, &all.mutex);
    EXPECT(all.n_failed == 1);
    pthread_mutex_unlock(&all.mutex);
    FAILS(devbay_session_start(session, inputs, 0, NULL, ended, &all, NULL), DEVBAY_ERROR_INVALID_INPUT);
    devbay_cancel_destroy(cancel);
    devbay_value_destroy(input);
    devbay_session_destroy(session);
}

static void ops(devbay_runtime *runtime) {
    devbay_device *device;
    OK(devbay_runtime_device(runtime, 0, &device));
    const int64_t extents[] = {2, 3};
    float x[6] = {1, 2, 3, 4, 5, 6};
    devbay_value *input = floats(extents, 2, x, 6), *output = NULL;
    const devbay_value *inputs[] = {input};
    devbay_attributes *attributes;
    OK(devbay_attributes_create(&attributes));
    const int64_t perm[] = {1, 0};
    OK(devbay_attributes_set_ints(attributes, "perm", perm, 2));
    OK(devbay_run_op(device, "Transpose", attributes, inputs, 1, &output, 1));
    EXPECT(elements(output, 6)[1] == 4);
    devbay_value_destroy(output);
    devbay_attributes_destroy(attributes);
    OK(devbay_attributes_create(&attributes));
    OK(devbay_attributes_set_float(attributes, "alpha", 0.5f));
    OK(devbay_attributes_set_int(attributes, "alpha", 1));
    OK(devbay_attributes_set_text(attributes, "mode", "x"));
    const float slopes[] = {1, 2};
    OK(devbay_attributes_set_floats(attributes, "slopes", slopes, 2));
    OK(devbay_attributes_set_value(attributes, "value", input));
    FAILS_WITH(devbay_run_op(device, "Transpose", attributes, inputs, 1, &output, 1), DEVBAY_ERROR_INVALID_ARGUMENT,
               "it has [perm]");
    devbay_attributes_destroy(attributes);
    OK(devbay_run_op(device, "Neg", NULL, inputs, 1, &output, 1));
    EXPECT(elements(output, 6)[5] == -6);
    devbay_value_destroy(output);
    FAILS_WITH(devbay_run_op(device, "Nag", NULL, inputs, 1, &output, 1), DEVBAY_ERROR_UNSUPPORTED_OP, "Nag");
    devbay_value_destroy(input);
    devbay_device_destroy(device);
}

/* dlpack.h's structs. */
typedef struct {
    void *data;
    struct {
        int32_t device_type, device_id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    Tensor dl_tensor;
};

static int n_deleted;
static void deleted(DLManagedTensorVersioned *self) {
    n_deleted++;
    free(self);
}

static void dlpack(devbay_runtime *runtime) {
    devbay_device *device;
    OK(devbay_runtime_device(runtime, 0, &device));
    int64_t extents[] = {2, 3};
    float x[6] = {1, 2, 3, 4, 5, 6};
    DLManagedTensorVersioned *tensor = calloc(1, sizeof *tensor);
    tensor->version.major = 1;
    tensor->deleter = deleted;
    tensor->dl_tensor = (Tensor){.data = x, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = extents};
    devbay_value *value;
    OK(devbay_value_from_dlpack(device, tensor, &value));
    EXPECT(elements(value, 6) == x && n_deleted == 0);
    DLManagedTensorVersioned *out;
    OK(devbay_value_to_dlpack(value, &out));
    devbay_value_destroy(value);
    EXPECT(out->dl_tensor.data == x && out->dl_tensor.ndim == 2 && out->dl_tensor.shape[1] == 3 && n_deleted == 0);
    EXPECT((out->flags & 1) == 1);
    out->deleter(out);
    EXPECT(n_deleted == 1);
    FAILS(devbay_value_from_dlpack(device, NULL, &value), DEVBAY_ERROR_INVALID_ARGUMENT);
    /* A tensor on another device is refused, and deleted. */
    tensor = calloc(1, sizeof *tensor);
    tensor->version.major = 1;
    tensor->deleter = deleted;
    tensor->dl_tensor = (Tensor){.data = x, .device = {2, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = extents};
    FAILS(devbay_value_from_dlpack(device, tensor, &value), DEVBAY_ERROR_INVALID_ARGUMENT);
    EXPECT(n_deleted == 2);
    devbay_device_destroy(device);
}

static void traces_and_files(const char *path, const char *folder) {
    devbay_options *options = options_of("trace", "true");
    devbay_runtime *runtime;
    OK(devbay_runtime_create(options, &runtime));
    devbay_options_destroy(options);
    devbay_model *model;
    OK(devbay_model_load(path, NULL, &model));
    devbay_session *session;
    OK(devbay_session_create(runtime, model, NULL, &session));
    const int64_t extents[] = {1, 1, 28, 28};
    devbay_value *input, *output = NULL;
    OK(devbay_value_create(DEVBAY_DTYPE_F32, extents, 4, &input));
    const devbay_value *inputs[] = {input};
    OK(devbay_session_run(session, inputs, 1, &output, 1, NULL));
    devbay_value_destroy(output);
    char *timeline, *summary;
    OK(devbay_runtime_take_trace(runtime, &timeline, &summary));
    EXPECT(strstr(timeline, "traceEvents") != NULL && strstr(summary, "\"runs\":1") != NULL);
    devbay_text_free(timeline);
    devbay_text_free(summary);

    char compiled[4096];
    snprintf(compiled, sizeof compiled, "%s/model.dbx", folder);
    OK(devbay_session_compile(session, compiled));
    devbay_session_destroy(session);
    devbay_model_destroy(model);
    OK(devbay_model_load(compiled, NULL, &model));
    options = options_of("device", "cpu:0");
    OK(devbay_options_set(options, "limit", "nodes=1000000"));
    OK(devbay_session_create(runtime, model, options, &session));
    devbay_session *other;
    OK(devbay_options_set(options, "device", "npu:0"));
    FAILS(devbay_session_create(runtime, model, options, &other), DEVBAY_ERROR_NOT_FOUND);
    devbay_options_destroy(options);
    output = NULL;
    OK(devbay_session_run(session, inputs, 1, &output, 1, NULL));
    FAILS(devbay_session_compile(session, "/nowhere/model.dbx"), DEVBAY_ERROR_IO);
    devbay_value_destroy(output);
    devbay_value_destroy(input);
    devbay_session_destroy(session);
    devbay_model_destroy(model);
    devbay_runtime_destroy(runtime);
    FAILS(devbay_runtime_take_trace(runtime, NULL, NULL), DEVBAY_ERROR_INVALID_ARGUMENT);
}

/* Threads that use and destroy the same handles. */
typedef struct {
    devbay_session *session;
    const devbay_value *input;
    atomic_int n_run, n_refused;
} Shared;

static void *runs_until_destroyed(void *argument) {
    Shared *shared = argument;
    for (;;) {
        devbay_value *output = NULL;
        devbay_error *error = devbay_session_run(shared->session, &shared->input, 1, &output, 1, NULL);
        if (error != NULL) {
            EXPECT(devbay_error_kind(error) == DEVBAY_ERROR_INVALID_ARGUMENT);
            devbay_error_destroy(error);
            atomic_fetch_add(&shared->n_refused, 1);
            return NULL;
        }
        devbay_value_destroy(output);
        atomic_fetch_add(&shared->n_run, 1);
    }
}

static void threads(devbay_runtime *runtime) {
    const int64_t extents[] = {2, 3};
    devbay_value *input;
    OK(devbay_value_create(DEVBAY_DTYPE_F32, extents, 2, &input));
    Shared shared = {.session = session_of(runtime, NEGATE), .input = input};
    pthread_t started[4];
    for (int i = 0; i < 4; i++) EXPECT(pthread_create(&started[i], NULL, runs_until_destroyed, &shared) == 0);
    while (atomic_load(&shared.n_run) < 100) sched_yield();
    devbay_session_destroy(shared.session);
    for (int i = 0; i < 4; i++) pthread_join(started[i], NULL);
    EXPECT(shared.n_refused == 4);
    devbay_value_destroy(input);
}

/* A forked child has an error for what its parent made, and can make its own. */
static void forks(devbay_runtime *runtime) {
    devbay_session *session = session_of(runtime, NEGATE);
    const int64_t extents[] = {2, 3};
    devbay_value *input, *output = NULL;
    OK(devbay_value_create(DEVBAY_DTYPE_F32, extents, 2, &input));
    const devbay_value *inputs[] = {input};
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        FAILS_WITH(devbay_session_run(session, inputs, 1, &output, 1, NULL), DEVBAY_ERROR_UNAVAILABLE, "forked");
        FAILS(devbay_value_to_host(input, &output), DEVBAY_ERROR_UNAVAILABLE);
        devbay_session_destroy(session);
        devbay_runtime_destroy(runtime);
        OK(devbay_runtime_create(NULL, &runtime));
        session = session_of(runtime, NEGATE);
        OK(devbay_value_create(DEVBAY_DTYPE_F32, extents, 2, &input));
        inputs[0] = input;
        devbay_run_options options = {.struct_size = sizeof options, .deadline_ns = UINT64_C(60000000000)};
        OK(devbay_session_run(session, inputs, 1, &output, 1, &options));
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    OK(devbay_session_run(session, inputs, 1, &output, 1, NULL));
    devbay_value_destroy(output);
    devbay_value_destroy(input);
    devbay_session_destroy(session);
}

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    EXPECT(devbay_api_version() >= DEVBAY_API_VERSION);
    options_and_runtimes(argv[1]);
    models(argv[1]);
    values();
    devbay_runtime *runtime;
    OK(devbay_runtime_create(NULL, &runtime));
    devices(runtime);
    runs(runtime);
    random_numbers(runtime);
    open_extents(runtime);
    in_the_background(runtime);
    ops(runtime);
    dlpack(runtime);
    threads(runtime);
    forks(runtime);
    devbay_runtime_destroy(runtime);
    traces_and_files(argv[1], argv[2]);
    EXPECT(devbay_live_handles() == 0);
    puts("all promises are kept");
    return 0;
}
