// devbay.hpp - devbay for C++17: classes over devbay.h.
//
// Objects own their handles and are moved, not copied. Failures are exceptions of type devbay::Error. What devbay.h says about
// threads and memory holds here, too.
//
//     devbay::Runtime runtime;
//     devbay::Session session(runtime, devbay::Model::load("model.onnx"));
//     auto x = devbay::Value::wrap<float>({1, 3}, data);
//     std::vector<devbay::Value> results = session.run({&x});
//     const float *y = results[0].data<float>();
#ifndef DEVBAY_HPP
#define DEVBAY_HPP

#include "devbay.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace devbay {

/// A failure, with its kind and place.
class Error : public std::runtime_error {
public:
    /// Takes an error of devbay.h, which is not NULL.
    explicit Error(devbay_error *error)
        : std::runtime_error(text(devbay_error_message(error))), kind_(devbay_error_kind(error)),
          kind_name_(text(devbay_error_kind_name(error))), plugin_(text(devbay_error_plugin(error))),
          device_(text(devbay_error_device(error))), node_(text(devbay_error_node(error))),
          file_(text(devbay_error_file(error))) {
        for (size_t i = 0; const char *cause = devbay_error_cause(error, i); i++) causes_.emplace_back(cause);
        devbay_error_destroy(error);
    }

    /// One of DEVBAY_ERROR_*.
    devbay_error_kind_t kind() const noexcept { return kind_; }
    /// The kind's name, such as "invalid-input".
    const std::string &kind_name() const noexcept { return kind_name_; }
    /// Where it happened; empty if that is not known.
    const std::string &plugin() const noexcept { return plugin_; }
    const std::string &device() const noexcept { return device_; }
    const std::string &node() const noexcept { return node_; }
    const std::string &file() const noexcept { return file_; }
    /// The causes, nearest first.
    const std::vector<std::string> &causes() const noexcept { return causes_; }

private:
    static const char *text(const char *chars) { return chars ? chars : ""; }

    devbay_error_kind_t kind_;
    std::string kind_name_, plugin_, device_, node_, file_;
    std::vector<std::string> causes_;
};

/// Throws an error, if there is one.
inline void check(devbay_error *error) {
    if (error) throw Error(error);
}

namespace detail {

/// A handle that is destroyed with its owner.
template <class T, void (*destroy)(T *)> class Handle {
public:
    Handle() = default;
    explicit Handle(T *handle) noexcept : handle_(handle) {}
    Handle(Handle &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Handle &operator=(Handle &&other) noexcept {
        if (this != &other) {
            destroy(handle_);
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    ~Handle() { destroy(handle_); }

    T *get() const noexcept { return handle_; }
    /// A place for a new handle.
    T **place() noexcept {
        destroy(std::exchange(handle_, nullptr));
        return &handle_;
    }
    T *release() noexcept { return std::exchange(handle_, nullptr); }

private:
    T *handle_ = nullptr;
};

/// Takes a text that a function gives away.
template <class F> std::string taken(F &&give) {
    char *chars = nullptr;
    check(give(&chars));
    std::unique_ptr<char, void (*)(char *)> owner(chars, devbay_text_free);
    return chars;
}

} // namespace detail

/// The type of elements of C++.
template <class T> struct dtype_of;
template <> struct dtype_of<int8_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_I8> {};
template <> struct dtype_of<int16_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_I16> {};
template <> struct dtype_of<int32_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_I32> {};
template <> struct dtype_of<int64_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_I64> {};
template <> struct dtype_of<uint8_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_U8> {};
template <> struct dtype_of<uint16_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_U16> {};
template <> struct dtype_of<uint32_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_U32> {};
template <> struct dtype_of<uint64_t> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_U64> {};
template <> struct dtype_of<float> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_F32> {};
template <> struct dtype_of<double> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_F64> {};
template <> struct dtype_of<bool> : std::integral_constant<devbay_dtype, DEVBAY_DTYPE_BOOL> {};

/// Options by key and value, for a runtime, a model or a session.
class Options {
public:
    Options() { check(devbay_options_create(handle_.place())); }
    Options(std::initializer_list<std::pair<std::string, std::string>> pairs) : Options() {
        for (const auto &[key, value] : pairs) set(key, value);
    }
    Options &set(const std::string &key, const std::string &value) {
        check(devbay_options_set(handle_.get(), key.c_str(), value.c_str()));
        return *this;
    }
    const devbay_options *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<devbay_options, devbay_options_destroy> handle_;
};

/// A device of a plugin.
class Device {
public:
    explicit Device(devbay_device *handle) noexcept : handle_(handle) {}
    std::string name() const { return devbay_device_name(get()); }
    std::string kind() const { return devbay_device_kind(get()); }
    std::string product() const { return devbay_device_product(get()); }
    /// Bytes that the runtime has allocated on it now.
    uint64_t bytes_in_use() const {
        uint64_t bytes = 0;
        check(devbay_device_memory(get(), &bytes, nullptr));
        return bytes;
    }
    const devbay_device *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<devbay_device, devbay_device_destroy> handle_;
};

/// A model that was read.
class Model {
public:
    static Model load(const std::string &path) { return load_with(path, nullptr); }
    static Model load(const std::string &path, const Options &options) { return load_with(path, options.get()); }
    static Model from_bytes(const void *bytes, size_t size) {
        Model model;
        check(devbay_model_from_bytes(static_cast<const uint8_t *>(bytes), size, model.handle_.place()));
        return model;
    }
    const devbay_model *get() const noexcept { return handle_.get(); }

private:
    Model() = default;
    static Model load_with(const std::string &path, const devbay_options *options) {
        Model model;
        check(devbay_model_load(path.c_str(), options, model.handle_.place()));
        return model;
    }
    detail::Handle<devbay_model, devbay_model_destroy> handle_;
};

/// Plugins, their devices, and the threads that run kernels.
class Runtime {
public:
    Runtime() { create(nullptr); }
    explicit Runtime(const Options &options) { create(options.get()); }
    std::vector<Device> devices() const {
        std::vector<Device> devices;
        size_t n = devbay_runtime_n_devices(get());
        for (size_t i = 0; i < n; i++) {
            devbay_device *device = nullptr;
            check(devbay_runtime_device(get(), i, &device));
            devices.emplace_back(device);
        }
        return devices;
    }
    /// Chooses a device: "auto", a name, or "prefer:KIND"; with a model, one that has kernels for all of it.
    Device choose(const std::string &policy, const Model *model = nullptr) const {
        devbay_device *device = nullptr;
        check(devbay_runtime_choose(get(), policy.c_str(), model ? model->get() : nullptr, &device, nullptr));
        return Device(device);
    }
    /// Plugins and devices, as JSON.
    std::string report() const {
        return detail::taken([&](char **out) { return devbay_runtime_report(get(), out); });
    }
    /// The timeline since the last call, as JSON for ui.perfetto.dev, of a runtime with the option trace=true.
    std::string take_timeline() const {
        return detail::taken([&](char **out) { return devbay_runtime_take_trace(get(), out, nullptr); });
    }
    const devbay_runtime *get() const noexcept { return handle_.get(); }

private:
    void create(const devbay_options *options) {
        if (devbay_api_version() < DEVBAY_API_VERSION)
            throw std::runtime_error("libdevbay is older than the header that this program was built with");
        check(devbay_runtime_create(options, handle_.place()));
    }
    detail::Handle<devbay_runtime, devbay_runtime_destroy> handle_;
};

/// A value that a model takes or returns: so far, a tensor.
class Value {
public:
    explicit Value(devbay_value *handle) noexcept : handle_(handle) {}

    /// Makes a tensor of zeros.
    static Value create(devbay_dtype type, const std::vector<int64_t> &extents) {
        devbay_value *value = nullptr;
        check(devbay_value_create(type, extents.data(), extents.size(), &value));
        return Value(value);
    }
    template <class T> static Value create(const std::vector<int64_t> &extents) {
        return create(dtype_of<T>::value, extents);
    }

    /// Makes a tensor of memory that lives until the value and all runs that use it have ended; runs only read it.
    template <class T> static Value wrap(const std::vector<int64_t> &extents, const T *data, size_t n) {
        return wrap_with(dtype_of<T>::value, extents, const_cast<T *>(data), n * sizeof(T), 0);
    }
    /// Makes a tensor that runs may also write.
    template <class T> static Value wrap_writable(const std::vector<int64_t> &extents, T *data, size_t n) {
        return wrap_with(dtype_of<T>::value, extents, data, n * sizeof(T), DEVBAY_WRITABLE);
    }
    template <class T> static Value wrap(const std::vector<int64_t> &extents, const std::vector<T> &data) {
        return wrap(extents, data.data(), data.size());
    }

    devbay_dtype type() const {
        devbay_dtype type = 0;
        check(devbay_value_type(get(), &type, nullptr, nullptr));
        return type;
    }
    std::vector<int64_t> extents() const {
        const int64_t *extents = nullptr;
        size_t rank = 0;
        check(devbay_value_type(get(), nullptr, &extents, &rank));
        return std::vector<int64_t>(extents, extents + rank);
    }
    /// Bytes of a tensor in host memory.
    size_t size() const {
        const void *data = nullptr;
        size_t size = 0;
        check(devbay_value_data(get(), &data, &size));
        return size;
    }
    /// Elements of a tensor in host memory; an exception for elements of another type.
    template <class T> const T *data() const {
        expect(dtype_of<T>::value);
        const void *data = nullptr;
        check(devbay_value_data(get(), &data, nullptr));
        return static_cast<const T *>(data);
    }
    template <class T> T *data_mut() {
        expect(dtype_of<T>::value);
        void *data = nullptr;
        check(devbay_value_data_mut(get(), &data, nullptr));
        return static_cast<T *>(data);
    }
    /// The device whose memory it is in; empty for host memory.
    std::string device() const {
        const char *name = devbay_value_device(get());
        return name ? name : "";
    }
    Value to_host() const {
        devbay_value *copy = nullptr;
        check(devbay_value_to_host(get(), &copy));
        return Value(copy);
    }
    Value to_device(const Device &device) const {
        devbay_value *copy = nullptr;
        check(devbay_value_to_device(get(), device.get(), &copy));
        return Value(copy);
    }
    devbay_value *get() const noexcept { return handle_.get(); }

private:
    static Value wrap_with(devbay_dtype type, const std::vector<int64_t> &extents, void *data, size_t size,
                           uint32_t flags) {
        devbay_value *value = nullptr;
        check(devbay_value_wrap(type, extents.data(), extents.size(), data, size, flags, nullptr, nullptr, &value));
        return Value(value);
    }
    void expect(devbay_dtype wanted) const {
        if (type() != wanted) throw std::invalid_argument("the tensor's elements are of another type");
    }
    detail::Handle<devbay_value, devbay_value_destroy> handle_;
};

/// A flag that ends runs.
class Cancel {
public:
    Cancel() { check(devbay_cancel_create(handle_.place())); }
    /// Sets it, for good; on any thread.
    void set() const { check(devbay_cancel_set(handle_.get())); }
    const devbay_cancel *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<devbay_cancel, devbay_cancel_destroy> handle_;
};

/// Options of a run.
struct RunOptions {
    /// Time limit; 0 for none.
    std::chrono::nanoseconds deadline{0};
    /// Ends the run when it is set; it lives until the call returns.
    const Cancel *cancel = nullptr;
    int32_t priority = 0;
    bool wait_if_full = false;
    bool results_on_device = false;
    /// Seed of this run's random numbers; none for the session's next ones.
    std::optional<uint64_t> seed;

    devbay_run_options get() const noexcept {
        devbay_run_options options{};
        options.struct_size = sizeof options;
        options.deadline_ns = static_cast<uint64_t>(deadline.count());
        options.cancel = cancel ? cancel->get() : nullptr;
        options.priority = priority;
        options.flags = (wait_if_full ? DEVBAY_RUN_WAIT_IF_FULL : 0u) |
                        (results_on_device ? DEVBAY_RUN_RESULTS_ON_DEVICE : 0u) |
                        (seed ? DEVBAY_RUN_SEED : 0u);
        options.seed = seed.value_or(0);
        return options;
    }
};

/// An input or output of a model.
struct Port {
    std::string name;
    /// 0 if the model does not say.
    devbay_dtype type = 0;
    /// False if the model does not say how many extents there are.
    bool has_extents = false;
    /// -1 for an extent that the model leaves open, whose name is at the same place in `symbols`.
    std::vector<int64_t> extents;
    std::vector<std::string> symbols;
};

/// A session that is bound to the memory of values, which it keeps.
class Bound {
public:
    explicit Bound(devbay_bound *handle) noexcept : handle_(handle) {}
    /// Runs once, on the present content of the inputs.
    void run() const { check(devbay_bound_run(handle_.get(), nullptr)); }

private:
    detail::Handle<devbay_bound, devbay_bound_destroy> handle_;
};

/// A model on a device. Any number of threads may run it at once.
class Session {
public:
    Session(const Runtime &runtime, const Model &model) { create(runtime, model, nullptr); }
    Session(const Runtime &runtime, const Model &model, const Options &options) {
        create(runtime, model, options.get());
    }

    std::vector<Port> inputs() const { return ports(devbay_session_n_inputs(get()), devbay_session_input); }
    std::vector<Port> outputs() const { return ports(devbay_session_n_outputs(get()), devbay_session_output); }
    /// Position of an input in the model's order.
    size_t find_input(const std::string &name) const {
        size_t i = 0;
        check(devbay_session_find_input(get(), name.c_str(), &i));
        return i;
    }
    size_t find_output(const std::string &name) const {
        size_t i = 0;
        check(devbay_session_find_output(get(), name.c_str(), &i));
        return i;
    }

    /// Runs on inputs in the model's order, and returns new values in the model's order.
    std::vector<Value> run(const std::vector<const Value *> &inputs, const RunOptions &options = {}) const {
        std::vector<devbay_value *> outputs(devbay_session_n_outputs(get()), nullptr);
        run_c(inputs, outputs, options);
        return owned(outputs);
    }
    /// Runs as above, and writes the results into values of their types.
    void run_into(const std::vector<const Value *> &inputs, const std::vector<Value *> &outputs,
                  const RunOptions &options = {}) const {
        std::vector<devbay_value *> places;
        for (const Value *output : outputs) places.push_back(output->get());
        run_c(inputs, places, options);
    }
    /// Starts a run in the background; the future has its results, or an Error.
    std::future<std::vector<Value>> start(const std::vector<const Value *> &inputs,
                                          const RunOptions &options = {}) const {
        auto promise = std::make_unique<std::promise<std::vector<Value>>>();
        std::future<std::vector<Value>> future = promise->get_future();
        std::vector<const devbay_value *> handles = raw(inputs);
        devbay_run_options given = options.get();
        check(devbay_session_start(get(), handles.data(), handles.size(), &given, ended, promise.get(), nullptr));
        // From here on the end of the run has it.
        promise.release();
        return future;
    }
    /// Binds the session to the memory of values, for many runs.
    Bound bind(const std::vector<const Value *> &inputs, const std::vector<Value *> &outputs) const {
        std::vector<const devbay_value *> handles = raw(inputs);
        std::vector<devbay_value *> places;
        for (const Value *output : outputs) places.push_back(output->get());
        devbay_bound *bound = nullptr;
        check(devbay_session_bind(get(), handles.data(), handles.size(), places.data(), places.size(), &bound));
        return Bound(bound);
    }

    Device device() const {
        devbay_device *device = nullptr;
        check(devbay_session_device(get(), &device));
        return Device(device);
    }
    /// The choice of the device, as JSON.
    std::string explain() const {
        return detail::taken([&](char **out) { return devbay_session_explain(get(), out); });
    }
    /// The plan for inputs of the types of these values, as JSON.
    std::string plan(const std::vector<const Value *> &inputs) const {
        std::vector<const devbay_value *> handles = raw(inputs);
        return detail::taken(
            [&](char **out) { return devbay_session_plan(get(), handles.data(), handles.size(), out); });
    }
    /// Writes a compiled model.
    void compile(const std::string &path) const { check(devbay_session_compile(get(), path.c_str())); }
    const devbay_session *get() const noexcept { return handle_.get(); }

private:
    void create(const Runtime &runtime, const Model &model, const devbay_options *options) {
        check(devbay_session_create(runtime.get(), model.get(), options, handle_.place()));
    }
    static std::vector<const devbay_value *> raw(const std::vector<const Value *> &values) {
        std::vector<const devbay_value *> handles;
        for (const Value *value : values) handles.push_back(value->get());
        return handles;
    }
    static std::vector<Value> owned(const std::vector<devbay_value *> &handles) {
        std::vector<Value> values;
        values.reserve(handles.size());
        for (devbay_value *handle : handles) values.emplace_back(handle);
        return values;
    }
    void run_c(const std::vector<const Value *> &inputs, std::vector<devbay_value *> &outputs,
               const RunOptions &options) const {
        std::vector<const devbay_value *> handles = raw(inputs);
        devbay_run_options given = options.get();
        check(devbay_session_run(get(), handles.data(), handles.size(), outputs.data(), outputs.size(), &given));
    }
    static void ended(void *user_data, devbay_error *error, devbay_value *const *outputs, size_t n) {
        std::unique_ptr<std::promise<std::vector<Value>>> promise(
            static_cast<std::promise<std::vector<Value>> *>(user_data));
        // No exception may leave this function; a future whose promise is gone says so itself.
        try {
            if (error) {
                promise->set_exception(std::make_exception_ptr(Error(error)));
            } else {
                promise->set_value(owned(std::vector<devbay_value *>(outputs, outputs + n)));
            }
        } catch (...) {
        }
    }
    template <class F> std::vector<Port> ports(size_t n, F describe) const {
        std::vector<Port> ports;
        for (size_t i = 0; i < n; i++) {
            devbay_port port{};
            port.struct_size = sizeof port;
            check(describe(get(), i, &port));
            Port found{port.name, port.type, port.rank >= 0, {}, {}};
            for (int32_t axis = 0; axis < port.rank; axis++) {
                found.extents.push_back(port.extents[axis]);
                found.symbols.emplace_back(port.symbols[axis] ? port.symbols[axis] : "");
            }
            ports.push_back(std::move(found));
        }
        return ports;
    }
    detail::Handle<devbay_session, devbay_session_destroy> handle_;
};

/// Attributes of an op, by name.
class Attributes {
public:
    Attributes() { check(devbay_attributes_create(handle_.place())); }
    Attributes &set(const std::string &name, int64_t value) {
        check(devbay_attributes_set_int(handle_.get(), name.c_str(), value));
        return *this;
    }
    Attributes &set(const std::string &name, float value) {
        check(devbay_attributes_set_float(handle_.get(), name.c_str(), value));
        return *this;
    }
    Attributes &set(const std::string &name, const std::string &value) {
        check(devbay_attributes_set_text(handle_.get(), name.c_str(), value.c_str()));
        return *this;
    }
    Attributes &set(const std::string &name, const std::vector<int64_t> &values) {
        check(devbay_attributes_set_ints(handle_.get(), name.c_str(), values.data(), values.size()));
        return *this;
    }
    const devbay_attributes *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<devbay_attributes, devbay_attributes_destroy> handle_;
};

/// Runs one op of ONNX on a device.
inline std::vector<Value> run_op(const Device &device, const std::string &op, const std::vector<const Value *> &inputs,
                                 size_t n_outputs = 1, const Attributes &attributes = {}) {
    std::vector<const devbay_value *> handles;
    for (const Value *input : inputs) handles.push_back(input->get());
    std::vector<devbay_value *> outputs(n_outputs, nullptr);
    check(devbay_run_op(device.get(), op.c_str(), attributes.get(), handles.data(), handles.size(), outputs.data(),
                        n_outputs));
    std::vector<Value> values;
    for (devbay_value *output : outputs) values.emplace_back(output);
    return values;
}

} // namespace devbay

#endif // DEVBAY_HPP
