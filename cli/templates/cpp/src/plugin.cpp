// plugin.cpp - a devbay plugin: one device and three kernels, Relu, Add and MatMul of f32.
//
// It works as it is, with the processor as its device: put your driver's calls where memory is
// allocated and copied, and where kernels are prepared and launched. All state hangs from the
// instance, destructors free it, and the tables are constants, so that no code runs when the
// library is loaded (B1: rules are numbered as in devbay's docs/abi-rules.md).
#include "devbay_plugin.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

static constexpr uint64_t alloc_align = 64, alloc_max = uint64_t{1} << 30;

// What a function throws that cannot do what it is asked for; the words say why.
struct Refusal {
    devbay_status status;
    std::string words;
};

// Runs a body that may throw: no exception leaves the library (B19), its words do (B18).
template <typename Body>
static devbay_status guarded(devbay_error_detail *error, const Body &body) noexcept {
    const auto report = [error](devbay_status status, std::string_view words) {
        if (error != nullptr) {
            error->status = status;
            error->text_len = words.size();
            for (size_t i = 0; i < words.size() && i < error->text_capacity; i++) {
                error->text[i] = words[i] & 0x80 ? '?' : words[i]; // A cut divides no character.
            }
        }
        return status;
    };
    try {
        body();
        return DEVBAY_STATUS_OK;
    } catch (const Refusal &refusal) {
        return report(refusal.status, refusal.words);
    } catch (const std::bad_alloc &) {
        return report(DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for an object");
    } catch (const std::exception &bug) {
        return report(DEVBAY_STATUS_PANICKED, bug.what());
    } catch (...) {
        return report(DEVBAY_STATUS_PANICKED, "an exception of an unknown type");
    }
}

// There is one device, so its handle is the instance's. A driver's context would stand here.
struct devbay_instance {
    devbay_device_info device;
};

// Memory of the device, freed with its buffer.
using Memory = std::unique_ptr<void, void (*)(void *)>;
struct devbay_buffer {
    uint64_t size;
    Memory memory;
};

// Work is done when the call returns, so a stream remembers nothing. A queue would stand here.
struct devbay_stream {};

// A prepared kernel: what a launch runs. Threads share it, so a call changes nothing of it.
using Kernel = std::function<void(const devbay_buffer_ref *refs)>;

// What a kernel is prepared for: inputs, then the output, all of them dense f32.
using Shape = std::span<const int64_t>;
struct Operand {
    Shape shape;
    uint64_t n; // Elements.
};
using Operands = std::span<const Operand>;

static float *floats(const devbay_buffer_ref &ref) { return reinterpret_cast<float *>(ref.addr); }

// Whether `a` is as the last dimensions of `y`, so that it repeats in it: a scalar, a bias.
static bool repeats_in(Shape a, Shape y) {
    return a.size() <= y.size() && std::ranges::equal(a, y.last(a.size()));
}

// Kernels check shapes once, and return what is launched many times without a check (B21).
static Kernel relu(Operands of) {
    if (!std::ranges::equal(of[0].shape, of[1].shape)) {
        throw Refusal{DEVBAY_STATUS_INVALID, "Relu: input and output differ in shape"};
    }
    return [n = of[1].n](const devbay_buffer_ref *refs) {
        const float *x = floats(refs[0]);
        // Not `x > 0 ? x : 0`: a NaN stays one.
        std::transform(x, x + n, floats(refs[1]), [](float x) { return x < 0 ? 0 : x; });
    };
}

static Kernel add(Operands of) {
    const Shape a = of[0].shape, b = of[1].shape, y = of[2].shape;
    if (!repeats_in(a, y) || !repeats_in(b, y) || (a.size() != y.size() && b.size() != y.size())) {
        throw Refusal{DEVBAY_STATUS_UNSUPPORTED, "Add: expected one shape or its last extents"};
    }
    return [n_a = of[0].n, n_b = of[1].n, n = of[2].n](const devbay_buffer_ref *refs) {
        float *a = floats(refs[0]), *b = floats(refs[1]), *y = floats(refs[2]);
        for (uint64_t i = 0; i < n; i++) {
            y[i] = a[i % n_a] + b[i % n_b];
        }
    };
}

static Kernel matmul(Operands of) {
    const Shape a = of[0].shape, b = of[1].shape, y = of[2].shape;
    if (a.size() != 2 || b.size() != 2 || y.size() != 2 || a[1] != b[0] || y[0] != a[0] ||
            y[1] != b[1]) {
        throw Refusal{DEVBAY_STATUS_UNSUPPORTED, "MatMul: expected [m,k] by [k,n] to be [m,n]"};
    }
    return [k = uint64_t(a[1]), columns = uint64_t(b[1]), n = of[2].n](
                   const devbay_buffer_ref *refs) {
        float *a = floats(refs[0]), *b = floats(refs[1]), *y = floats(refs[2]);
        for (uint64_t i = 0; i < n; i++) {
            y[i] = 0;
            for (uint64_t j = 0; j < k; j++) {
                y[i] += a[i / columns * k + j] * b[j * columns + i % columns];
            }
        }
    };
}

static constexpr devbay_dtype f32[] = {{DEVBAY_DTYPE_FLOAT, 32, 1}};
static constexpr devbay_type_var typevars[] = {{sizeof(devbay_type_var), 1, f32}};
static constexpr uint8_t first[] = {0}; // All operands: those beyond the list are as its last.

// An op of ONNX's, as the opset `version` has it, with so many inputs and one output.
static constexpr devbay_kernel_info op(devbay_str name, uint32_t version, uint32_t n_inputs) {
    return {.struct_size = sizeof(devbay_kernel_info), .since_version = version, .op = name,
            .n_inputs_min = n_inputs, .n_inputs_max = n_inputs, .n_outputs_min = 1,
            .n_outputs_max = 1, .typevars = DEVBAY_LIST(typevars),
            .input_typevars = DEVBAY_LIST(first), .output_typevars = DEVBAY_LIST(first),
            .flags = DEVBAY_KERNEL_DETERMINISTIC};
}

// A kernel is an entry in both lists.
static constexpr devbay_kernel_info kernels[] = {op(DEVBAY_STR("Relu"), 14, 1),
        op(DEVBAY_STR("Add"), 14, 2), op(DEVBAY_STR("MatMul"), 13, 2)};
static constexpr Kernel (*makers[])(Operands of) = {relu, add, matmul};

static devbay_status launch(const void *state, devbay_stream *, const devbay_buffer_ref *refs,
        const int64_t *) noexcept {
    return guarded(nullptr, [&] { (*static_cast<const Kernel *>(state))(refs); });
}

// What a list of tensors adds to the operands. The host says how far apart they are (B5).
static void read_operands(const devbay_list &list, std::vector<Operand> &operands) {
    for (uint64_t i = 0; i < list.len; i++) {
        const auto *tensor = static_cast<const devbay_tensor *>(DEVBAY_AT(&list, i));
        if ((tensor->flags & DEVBAY_TENSOR_ABSENT) != 0 ||
                (DEVBAY_HAS(devbay_tensor, tensor, strides) && tensor->strides != nullptr) ||
                tensor->dtype.code != DEVBAY_DTYPE_FLOAT || tensor->dtype.bits != 32) {
            throw Refusal{DEVBAY_STATUS_UNSUPPORTED, "expected dense operands of f32"};
        }
        Operand operand{{tensor->shape, tensor->rank}, 1};
        for (const int64_t extent : operand.shape) {
            if (extent != 0 && operand.n > alloc_max / sizeof(float) / uint64_t(extent)) {
                throw Refusal{DEVBAY_STATUS_UNSUPPORTED, "an operand is larger than a buffer"};
            }
            operand.n *= uint64_t(extent);
        }
        operands.push_back(operand);
    }
}

static devbay_status prepare(devbay_instance *, const devbay_prepare_desc *desc,
        devbay_prepared *out, devbay_error_detail *error) noexcept {
    return guarded(error, [&] {
        const uint32_t idx = desc->kernel_idx;
        if (idx >= std::size(kernels) || desc->inputs.len != kernels[idx].n_inputs_max ||
                desc->outputs.len != 1 || desc->attrs.len != 0) {
            throw Refusal{DEVBAY_STATUS_UNSUPPORTED, "no kernel of these operands and attributes"};
        }
        std::vector<Operand> operands;
        read_operands(desc->inputs, operands);
        read_operands(desc->outputs, operands);
        out->state = new Kernel(makers[idx](operands));
        out->launch = launch;
    });
}

static void unprepare(devbay_instance *, devbay_prepared *prepared) noexcept {
    delete static_cast<Kernel *>(prepared->state);
}

template <typename T> static void destroy(T *object) noexcept { delete object; }

static constexpr devbay_memory_space spaces[] = {{
        .struct_size = sizeof(devbay_memory_space), .kind = DEVBAY_SPACE_UNIFIED,
        .flags = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
        .alloc_max = alloc_max, .alloc_align = alloc_align,
        .bind_align = sizeof(float), .copy_align = 1, .copy_granule = 1,
}};

static devbay_status create(const devbay_create_desc *desc, devbay_instance **out,
        devbay_error_detail *error) noexcept {
    return guarded(error, [&] {
        if (desc->abi_minor < DEVBAY_ABI_MINOR_MIN || desc->abi_minor > DEVBAY_ABI_MINOR) {
            throw Refusal{DEVBAY_STATUS_UNSUPPORTED, "ABI 0." + std::to_string(desc->abi_minor)};
        }
        for (uint64_t i = 0; i < desc->options.len; i++) {
            const auto &key = static_cast<const devbay_key_value *>(DEVBAY_AT(&desc->options, i))->key;
            if (!DEVBAY_IS_HOSTS(key)) {
                throw Refusal{DEVBAY_STATUS_INVALID, "unknown option " + std::string(key.ptr, key.len)};
            }
        }
        auto instance = std::make_unique<devbay_instance>();
        instance->device = {
                .struct_size = sizeof(devbay_device_info), .kind = DEVBAY_DEVICE_KIND_OTHER,
                .handle = reinterpret_cast<devbay_device *>(instance.get()),
                .id = DEVBAY_STR("0"), .name = DEVBAY_STR("template-plugin device"),
                .flags = DEVBAY_DEVICE_INLINE | DEVBAY_DEVICE_HOST_REFS,
                .spaces = DEVBAY_LIST(spaces),
        };
        *out = instance.release();
    });
}

static devbay_status devices(devbay_instance *of, devbay_list *out, devbay_error_detail *) {
    *out = {&of->device, 1, sizeof(of->device)};
    return DEVBAY_STATUS_OK;
}

static devbay_status buffer_alloc(devbay_device *, const devbay_alloc_desc *desc,
        devbay_allocation *out, devbay_error_detail *error) noexcept {
    return guarded(error, [&] {
        const uint64_t size = desc->size_bytes, align = std::max(desc->align, alloc_align);
        if (desc->space_idx != 0 || (desc->align & (desc->align - 1)) != 0 || align > alloc_max) {
            throw Refusal{DEVBAY_STATUS_INVALID, "expected space 0, and an alignment of 2^n"};
        }
        const uint64_t room = (size / align + 1) * align; // As aligned_alloc wants it.
        Memory memory(size > alloc_max ? nullptr : std::aligned_alloc(align, room), std::free);
        if (memory == nullptr) {
            throw Refusal{DEVBAY_STATUS_OUT_OF_MEMORY, std::to_string(size) + " bytes at once"};
        }
        out->buffer = new devbay_buffer{size, std::move(memory)};
        out->base = uint64_t(out->buffer->memory.get());
        out->size_bytes = size;
    });
}

static devbay_status stream_create(devbay_device *, const devbay_stream_desc *,
        devbay_stream **out, devbay_error_detail *error) noexcept {
    return guarded(error, [&] { *out = new devbay_stream(); });
}

// The address of a reference, or 0 if it has not `size` bytes within its buffer.
static uint64_t within(const devbay_buffer_ref &ref, uint64_t size) {
    const uint64_t room = ref.buffer != nullptr ? ref.buffer->size : UINT64_MAX;
    const bool fits = size <= ref.length && ref.offset <= room && ref.length <= room - ref.offset;
    return fits ? ref.addr : 0;
}

static devbay_status copy(devbay_stream *, const devbay_copy_desc *desc) noexcept {
    const uint64_t size = desc->size_bytes;
    const bool from_host = desc->kind == DEVBAY_COPY_HOST_TO_BUFFER;
    const bool to_host = desc->kind == DEVBAY_COPY_BUFFER_TO_HOST;
    const uint64_t src = from_host ? uint64_t(desc->host_src) : within(desc->src, size);
    const uint64_t dst = to_host ? uint64_t(desc->host_dst) : within(desc->dst, size);
    if (desc->kind < DEVBAY_COPY_HOST_TO_BUFFER || desc->kind > DEVBAY_COPY_BUFFER_TO_BUFFER) {
        return DEVBAY_STATUS_UNSUPPORTED;
    }
    if (size == 0) {
        return DEVBAY_STATUS_OK;
    }
    if (src == 0 || dst == 0 || (src < dst + size && dst < src + size)) {
        return DEVBAY_STATUS_INVALID;
    }
    std::memcpy(reinterpret_cast<void *>(dst), reinterpret_cast<const void *>(src), size);
    return DEVBAY_STATUS_OK;
}

static constexpr devbay_plugin_table table = {
        .struct_size = sizeof(devbay_plugin_table),
        .create = create, .destroy = destroy<devbay_instance>, .devices = devices,
        .buffer_alloc = buffer_alloc, .buffer_free = destroy<devbay_buffer>,
        .stream_create = stream_create, .stream_destroy = destroy<devbay_stream>, .copy = copy,
        .prepare = prepare, .unprepare = unprepare,
};
static constexpr devbay_str profiles[] = {DEVBAY_STR("base"), DEVBAY_STR("kernels")};
static constexpr devbay_plugin_info info = {
        .struct_size = sizeof(devbay_plugin_info), .abi_minor_min = DEVBAY_ABI_MINOR_MIN,
        .abi_minor_max = DEVBAY_ABI_MINOR, .threading = DEVBAY_THREADING_FREE,
        .name = DEVBAY_STR("template-plugin"),
        .vendor = DEVBAY_STR("your company"), .version = DEVBAY_STR("0.1.0"),
        .table = &table, .profiles = DEVBAY_LIST(profiles), .kernels = DEVBAY_LIST(kernels),
};

const devbay_plugin_info *DEVBAY_ENTRY() {
    return &info;
}
