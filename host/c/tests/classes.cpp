// What devbay.hpp promises: classes MODEL FOLDER, with models/mnist_cnn/model.onnx and a folder for files.
#include <devbay.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define EXPECT(condition)                                                                                             \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            std::fprintf(stderr, "classes.cpp:%d: not so: %s\n", __LINE__, #condition);                               \
            std::exit(1);                                                                                             \
        }                                                                                                             \
    } while (0)

template <class F> static devbay::Error failure(F &&call) {
    try {
        call();
    } catch (const devbay::Error &error) {
        return error;
    }
    std::fprintf(stderr, "expected an exception\n");
    std::exit(1);
}

static const char NEGATE[] = "devbay-program 1\nprogram \"negate\"(%x: f32[2, 3]) {\n"
                             "    %y: f32[2, 3] = Neg@13(%x)\n    return %y\n}\n";

static void everything(const std::string &path, const std::string &folder) {
    using namespace devbay;
    Runtime runtime(Options{{"threads", "2"}});
    EXPECT(runtime.devices().size() == 1 && runtime.devices()[0].name() == "cpu:0");
    EXPECT(runtime.choose("cpu:0").kind() == "cpu" && !runtime.choose("auto").product().empty());
    EXPECT(runtime.report().find("cpu:0") != std::string::npos);
    Error refused = failure([&] { Runtime(Options{{"threads", "many"}}); });
    EXPECT(refused.kind() == DEVBAY_ERROR_INVALID_ARGUMENT && refused.kind_name() == "invalid-argument");
    Error missing = failure([] { Model::load("/nowhere/model.onnx"); });
    EXPECT(missing.kind() == DEVBAY_ERROR_IO && missing.file() == "/nowhere/model.onnx" && !missing.causes().empty());

    Session session(runtime, Model::from_bytes(NEGATE, sizeof NEGATE - 1));
    EXPECT(session.inputs()[0].name == "x" && session.outputs()[0].extents == (std::vector<int64_t>{2, 3}));
    EXPECT(session.find_input("x") == 0 && session.device().name() == "cpu:0");
    EXPECT(session.explain().find("cpu:0") != std::string::npos);
    std::vector<float> data = {1, 2, 3, 4, 5, 6};
    Value x = Value::wrap({2, 3}, data);
    EXPECT(x.data<float>() == data.data() && x.size() == 24 && x.device().empty());
    EXPECT(session.plan({&x}).find("stages") != std::string::npos);
    std::vector<Value> results = session.run({&x});
    EXPECT(results[0].data<float>()[5] == -6 && results[0].extents() == x.extents());
    Value y = Value::create<float>({2, 3});
    session.run_into({&x}, {&y});
    EXPECT(y.data<float>()[0] == -1);
    y.data_mut<float>()[0] = 0;
    Bound bound = session.bind({&x}, {&y});
    data[0] = 10;
    bound.run();
    EXPECT(y.data<float>()[0] == -10);
    Value moved = std::move(y);
    EXPECT(failure([&] { y.extents(); }).kind() == DEVBAY_ERROR_INVALID_ARGUMENT);
    try {
        moved.data<int64_t>();
        EXPECT(false);
    } catch (const std::invalid_argument &) {
    }
    Value on_device = moved.to_device(session.device());
    EXPECT(on_device.to_host().data<float>()[5] == -6);

    std::vector<std::future<std::vector<Value>>> runs;
    for (int i = 0; i < 20; i++) runs.push_back(session.start({&x}));
    for (auto &run : runs) EXPECT(run.get()[0].data<float>()[0] == -10);
    Cancel cancel;
    cancel.set();
    RunOptions options;
    options.cancel = &cancel;
    EXPECT(failure([&] { session.run({&x}, options); }).kind() == DEVBAY_ERROR_CANCELLED);
    auto cancelled = session.start({&x}, options);
    EXPECT(failure([&] { cancelled.get(); }).kind() == DEVBAY_ERROR_CANCELLED);
    EXPECT(failure([&] { session.run({&x, &x}); }).kind() == DEVBAY_ERROR_INVALID_INPUT);

    std::vector<Value> turned = run_op(runtime.choose("auto"), "Transpose", {&x}, 1,
                                       Attributes().set("perm", std::vector<int64_t>{1, 0}));
    EXPECT(turned[0].data<float>()[1] == 4);

    Session mnist(runtime, Model::load(path), Options{{"device", "cpu:0"}});
    Value picture = Value::create<float>({1, 1, 28, 28});
    EXPECT(mnist.run({&picture})[0].extents() == (std::vector<int64_t>{1, 10}));
    mnist.compile(folder + "/classes.dbx");
    Session compiled(runtime, Model::load(folder + "/classes.dbx", Options{{"checks", "weights"}}));
    EXPECT(compiled.run({&picture}).size() == 1);
}

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    everything(argv[1], argv[2]);
    EXPECT(devbay_live_handles() == 0);
    std::puts("all promises are kept");
    return 0;
}
