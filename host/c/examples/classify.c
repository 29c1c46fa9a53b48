/* Says which digit a picture shows: classify MODEL PICTURE.pgm
 *
 * MODEL is models/mnist_cnn/model.onnx, and PICTURE a grey picture of 28 x 28 pixels, such as three.pgm. */
#include <devbay.h>

#include <stdio.h>
#include <stdlib.h>

#define SIDE 28

/* Prints an error, and ends the program. */
static void check(devbay_error *error) {
    if (error == NULL) return;
    fprintf(stderr, "error (%s): %s\n", devbay_error_kind_name(error), devbay_error_message(error));
    for (size_t i = 0; devbay_error_cause(error, i) != NULL; i++)
        fprintf(stderr, "  because: %s\n", devbay_error_cause(error, i));
    devbay_error_destroy(error);
    exit(1);
}

/* Reads a picture, normalised as the model was trained. */
static int read_picture(const char *path, float pixels[SIDE * SIDE]) {
    unsigned char bytes[SIDE * SIDE];
    int width = 0, height = 0, max = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    int ok = fscanf(file, "P5 %d %d %d", &width, &height, &max) == 3 && fgetc(file) == '\n' && width == SIDE &&
             height == SIDE && max == 255 && fread(bytes, 1, sizeof bytes, file) == sizeof bytes;
    fclose(file);
    for (int i = 0; ok && i < SIDE * SIDE; i++) pixels[i] = ((float)bytes[i] / 255 - 0.1307f) / 0.3081f;
    return ok;
}

int main(int argc, char **argv) {
    static float pixels[SIDE * SIDE];
    if (argc != 3 || !read_picture(argv[2], pixels)) {
        fprintf(stderr, "usage: classify MODEL PICTURE.pgm, with a picture of 28 x 28 pixels\n");
        return 2;
    }

    devbay_runtime *runtime;
    devbay_model *model;
    devbay_session *session;
    check(devbay_runtime_create(NULL, &runtime));
    check(devbay_model_load(argv[1], NULL, &model));
    check(devbay_session_create(runtime, model, NULL, &session));

    /* The model reads the picture where it is. For the NULL output it makes a new value. */
    const int64_t extents[] = {1, 1, SIDE, SIDE};
    devbay_value *input, *output = NULL;
    check(devbay_value_wrap(DEVBAY_DTYPE_F32, extents, 4, pixels, sizeof pixels, 0, NULL, NULL, &input));
    const devbay_value *inputs[] = {input};
    check(devbay_session_run(session, inputs, 1, &output, 1, NULL));

    const void *data;
    size_t size;
    check(devbay_value_data(output, &data, &size));
    const float *scores = data;
    size_t best = 0;
    for (size_t i = 1; i < size / sizeof *scores; i++)
        if (scores[i] > scores[best]) best = i;
    printf("digit %zu\n", best);

    devbay_value_destroy(output);
    devbay_value_destroy(input);
    devbay_session_destroy(session);
    devbay_model_destroy(model);
    devbay_runtime_destroy(runtime);
    return devbay_live_handles() == 0 ? 0 : 1;
}
