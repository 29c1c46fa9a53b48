// An emulator of the parts of CUDA's driver and of NVRTC that the plugin calls: two devices whose memory is the host's,
// whose streams are threads, and whose kernels are compiled by the C++ compiler and run on the processor.
//
// It is for trying the plugin where there is no GPU (run.sh). It refuses calls without a current context, fills memory
// that was allocated or freed, and can be told to differ: EMULATOR_NO_WORDS, EMULATOR_NO_POOLS and EMULATOR_NO_GRAPHS take
// a feature away, EMULATOR_DELAY_US makes every piece of work take longer, EMULATOR_INIT is what cuInit returns. Threads of a block run one
// after the other, as fibers where a kernel has barriers. Speed, errors of the device's, and the memory model of a GPU are
// left out.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

typedef int Code;
typedef void *Handle;
typedef uint64_t Address;

static thread_local Handle current;
static char contexts[2];

#define NEEDS_CONTEXT                                                      \
  if (!current) {                                                          \
    fprintf(stderr, "emulator: %s without a current context\n", __func__); \
    return 201;                                                            \
  }

static bool told(const char *name) { return getenv(name) != nullptr; }

// Events: each record is a ticket, which the stream stamps in its turn.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t target = 0, done = 0;
};

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool is_closed = false, is_busy = false, is_capturing = false;
  std::vector<std::function<void()>> captured;
  std::thread thread;

  Stream() : thread([this] { run(); }) {}

  void run() {
    static const char *delay = getenv("EMULATOR_DELAY_US");
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> lock(mutex);
        is_busy = false;
        changed.notify_all();
        changed.wait(lock, [&] { return !work.empty() || is_closed; });
        if (work.empty()) return;
        next = std::move(work.front());
        work.pop_front();
        is_busy = true;
      }
      if (delay) usleep(atoi(delay));
      next();
    }
  }
  void add(std::function<void()> what) {
    std::lock_guard<std::mutex> lock(mutex);
    if (is_capturing) return captured.push_back(std::move(what));
    work.push_back(std::move(what));
    changed.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return work.empty() && !is_busy; });
  }
  void close() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      is_closed = true;
      changed.notify_all();
    }
    thread.join();
  }
};

// A stream by its handle; NULL is the default one.
static Stream *of(Handle stream) {
  static Stream *standard = new Stream;
  return stream ? (Stream *)stream : standard;
}

// For blas.cpp.
void enqueue(Handle stream, std::function<void()> what) { of(stream)->add(std::move(what)); }

static const size_t TOTAL = size_t(2) << 30;
static std::mutex memory;
static std::map<Address, size_t> allocated;
static std::map<Address, int> owners;
static size_t in_use;

static Code take(Address *at, size_t size) {
  std::lock_guard<std::mutex> lock(memory);
  void *start;
  if (in_use + size > TOTAL || posix_memalign(&start, 512, size)) return 2;
  memset(start, 0xCD, size);
  *at = (Address)start;
  allocated[*at] = size;
  owners[*at] = (int)((char *)current - contexts);
  in_use += size;
  return 0;
}

static Code give(Address at) {
  std::lock_guard<std::mutex> lock(memory);
  auto found = allocated.find(at);
  if (found == allocated.end()) {
    fprintf(stderr, "emulator: free of memory that was not allocated\n");
    return 1;
  }
  in_use -= found->second;
  memset((void *)at, 0xDD, found->second);
  free((void *)at);
  allocated.erase(found);
  return 0;
}

extern "C" {

Code cuInit(unsigned) { return told("EMULATOR_INIT") ? atoi(getenv("EMULATOR_INIT")) : 0; }
Code cuDriverGetVersion(int *version) { return *version = 13000, 0; }

Code cuGetErrorName(int code, const char **name) {
  static const std::map<int, const char *> names = {{1, "CUDA_ERROR_INVALID_VALUE"},
                                                    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                    {100, "CUDA_ERROR_NO_DEVICE"},
                                                    {200, "CUDA_ERROR_INVALID_IMAGE"},
                                                    {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                    {500, "CUDA_ERROR_NOT_FOUND"},
                                                    // A code that CUDA 12.0 did not have.
                                                    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"}};
  auto found = names.find(code);
  if (found == names.end()) return 1;
  return *name = found->second, 0;
}
Code cuGetErrorString(int code, const char **words) {
  Code status = cuGetErrorName(code, words);
  return *words = "emulated", status;
}

Code cuDeviceGetCount(int *n) { return *n = 2, 0; }
Code cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
Code cuDeviceGetName(char *name, int n, int) { return snprintf(name, n, "emulated GPU"), 0; }
Code cuDeviceGetAttribute(int *value, int attribute, int) {
  switch (attribute) {
    case 5: return *value = 0x7fffffff, 0;    // blocks along x
    case 8: return *value = 49152, 0;         // bytes that a block shares
    case 16: return *value = 4, 0;            // multiprocessors
    case 41: return *value = 1, 0;            // unified addressing
    case 75: return *value = 8, 0;            // compute capability
    case 76: return *value = 0, 0;
    case 115: return *value = !told("EMULATOR_NO_POOLS"), 0;
    case 122: return *value = !told("EMULATOR_NO_WORDS"), 0;
  }
  return 1;
}
Code cuDeviceGetPCIBusId(char *id, int n, int device) { return snprintf(id, n, "0000:0%d:00.0", device + 1), 0; }
Code cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return memset(uuid, 0x11 + device, 16), 0; }
Code cuDeviceTotalMem_v2(size_t *n, int) { return *n = TOTAL, 0; }
Code cuDeviceCanAccessPeer(int *can, int, int) { return *can = 1, 0; }

Code cuDevicePrimaryCtxRetain(Handle *context, int device) { return *context = contexts + device, 0; }
Code cuDevicePrimaryCtxRelease_v2(int) { return 0; }
Code cuCtxGetCurrent(Handle *context) { return *context = current, 0; }
Code cuCtxSetCurrent(Handle context) { return current = context, 0; }
Code cuCtxGetStreamPriorityRange(int *least, int *most) {
  NEEDS_CONTEXT
  return *least = 0, *most = -5, 0;
}

Code cuMemGetInfo_v2(size_t *unused, size_t *total) {
  NEEDS_CONTEXT
  return *unused = TOTAL - in_use, *total = TOTAL, 0;
}
Code cuMemAlloc_v2(Address *at, size_t size) {
  NEEDS_CONTEXT
  return take(at, size);
}
Code cuMemFree_v2(Address at) {
  NEEDS_CONTEXT
  return give(at);
}
Code cuMemPoolCreate(Handle *pool, const void *) {
  NEEDS_CONTEXT
  return *pool = malloc(1), 0;
}
Code cuMemPoolDestroy(Handle pool) {
  NEEDS_CONTEXT
  return free(pool), 0;
}
Code cuMemPoolSetAttribute(Handle, int, void *) {
  NEEDS_CONTEXT
  return 0;
}
Code cuMemPoolGetAttribute(Handle, int, void *value) {
  NEEDS_CONTEXT
  return *(uint64_t *)value = in_use, 0;
}
Code cuMemPoolSetAccess(Handle, const void *, size_t) {
  NEEDS_CONTEXT
  return 0;
}
Code cuMemPoolTrimTo(Handle, size_t) {
  NEEDS_CONTEXT
  return 0;
}
Code cuMemAllocFromPoolAsync(Address *at, size_t size, Handle, Handle) {
  NEEDS_CONTEXT
  return take(at, size);
}
Code cuMemFreeAsync(Address at, Handle) {
  NEEDS_CONTEXT
  return give(at);
}
Code cuMemHostAlloc(void **start, size_t size, unsigned) {
  NEEDS_CONTEXT
  return posix_memalign(start, 4096, size) ? 2 : 0;
}
Code cuMemFreeHost(void *start) {
  NEEDS_CONTEXT
  return free(start), 0;
}

Code cuPointerGetAttribute(void *value, int attribute, Address at) {
  NEEDS_CONTEXT
  std::lock_guard<std::mutex> lock(memory);
  auto found = allocated.upper_bound(at);
  if (found == allocated.begin()) return 1;
  --found;
  if (at >= found->first + found->second) return 1;
  switch (attribute) {
    case 2: return *(unsigned *)value = 2, 0;
    case 9: return *(int *)value = owners[found->first], 0;
    case 11: return *(Address *)value = found->first, 0;
    case 12: return *(size_t *)value = found->second, 0;
    default: return 1;
  }
}
Code cuMemcpyAsync(Address to, Address from, size_t size, Handle stream) {
  NEEDS_CONTEXT
  of(stream)->add([=] { memcpy((void *)to, (void *)from, size); });
  return 0;
}
Code cuStreamCreateWithPriority(Handle *stream, unsigned, int) {
  NEEDS_CONTEXT
  return *stream = new Stream, 0;
}
Code cuStreamDestroy_v2(Handle stream) {
  NEEDS_CONTEXT
  of(stream)->close();
  delete of(stream);
  return 0;
}
Code cuStreamSynchronize(Handle stream) {
  NEEDS_CONTEXT
  of(stream)->wait();
  return 0;
}
// A graph is the work that a stream was given while it was captured; instantiated it is the same.
Code cuStreamBeginCapture_v2(Handle stream, int) {
  NEEDS_CONTEXT
  auto own = of(stream);
  std::lock_guard<std::mutex> lock(own->mutex);
  if (own->is_capturing) return 1;
  return own->is_capturing = true, 0;
}
Code cuStreamEndCapture(Handle stream, Handle *graph) {
  NEEDS_CONTEXT
  auto own = of(stream);
  std::lock_guard<std::mutex> lock(own->mutex);
  if (!own->is_capturing || told("EMULATOR_NO_GRAPHS")) return own->is_capturing = false, 901;
  own->is_capturing = false;
  *graph = new std::vector<std::function<void()>>(std::move(own->captured));
  own->captured.clear();
  return 0;
}
Code cuGraphInstantiateWithFlags(Handle *exec, Handle graph, unsigned long long) {
  NEEDS_CONTEXT
  return *exec = new std::vector<std::function<void()>>(*(std::vector<std::function<void()>> *)graph), 0;
}
Code cuGraphDestroy(Handle graph) { return delete (std::vector<std::function<void()>> *)graph, 0; }
Code cuGraphExecDestroy(Handle exec) { return delete (std::vector<std::function<void()>> *)exec, 0; }
Code cuGraphLaunch(Handle exec, Handle stream) {
  NEEDS_CONTEXT
  auto work = *(std::vector<std::function<void()>> *)exec;
  of(stream)->add([=] {
    for (auto &each : work) each();
  });
  return 0;
}
Code cuStreamWaitEvent(Handle stream, Handle handle, unsigned) {
  NEEDS_CONTEXT
  auto event = (Event *)handle;
  std::lock_guard<std::mutex> lock(event->mutex);
  uint64_t ticket = event->target;
  of(stream)->add([=] {
    std::unique_lock<std::mutex> lock(event->mutex);
    event->changed.wait(lock, [&] { return event->done >= ticket; });
  });
  return 0;
}
Code cuStreamWriteValue64_v2(Handle stream, Address at, uint64_t value, unsigned) {
  NEEDS_CONTEXT
  of(stream)->add([=] { __atomic_store_n((uint64_t *)at, value, __ATOMIC_SEQ_CST); });
  return 0;
}
Code cuEventCreate(Handle *event, unsigned) {
  NEEDS_CONTEXT
  return *event = new Event, 0;
}
Code cuEventDestroy_v2(Handle event) {
  NEEDS_CONTEXT
  delete (Event *)event;
  return 0;
}
Code cuEventRecord(Handle handle, Handle stream) {
  NEEDS_CONTEXT
  auto event = (Event *)handle;
  std::lock_guard<std::mutex> lock(event->mutex);
  uint64_t ticket = ++event->target;
  of(stream)->add([=] {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->done = ticket;
    event->changed.notify_all();
  });
  return 0;
}
Code cuEventSynchronize(Handle handle) {
  auto event = (Event *)handle;
  std::unique_lock<std::mutex> lock(event->mutex);
  uint64_t ticket = event->target;
  event->changed.wait(lock, [&] { return event->done >= ticket; });
  return 0;
}

// A module is a library; its image is the library's path.
Code cuModuleLoadData(Handle *module, const void *image) {
  NEEDS_CONTEXT
  *module = dlopen((const char *)image, RTLD_NOW | RTLD_LOCAL);
  if (!*module) fprintf(stderr, "emulator: %s\n", dlerror());
  return *module ? 0 : 200;
}
Code cuModuleUnload(Handle module) {
  NEEDS_CONTEXT
  return dlclose(module), 0;
}
Code cuModuleGetFunction(Handle *function, Handle module, const char *name) {
  NEEDS_CONTEXT
  *function = dlsym(module, (std::string(name) + "_run").c_str());
  return *function ? 0 : 500;
}
Code cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                    unsigned, Handle stream, void **arguments, void **) {
  NEEDS_CONTEXT
  typedef void (*Run)(void **arguments, unsigned *numbers, int asks_for_sizes);
  unsigned sizes[80];
  ((Run)function)(nullptr, sizes, 1);
  std::vector<std::vector<char>> copies;
  for (unsigned i = 0; i < sizes[0]; i++) {
    auto start = (char *)arguments[i];
    copies.emplace_back(start, start + sizes[i + 1]);
  }
  std::vector<unsigned> numbers = {gx, gy, gz, bx, by, bz};
  of(stream)->add([=] {
    std::vector<void *> pointers;
    for (auto &copy : copies) pointers.push_back((void *)copy.data());
    auto own = numbers;
    ((Run)function)(pointers.data(), own.data(), 0);
  });
  return 0;
}

}  // extern "C"

// NVRTC: the text is changed to C++ for the processor. Its version is one that NVIDIA will not have, so that what it makes
// is never taken from the cache for what NVIDIA's makes.

static const char *const BEFORE = R"(
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>
using namespace std;
#define __device__
#define __global__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(n)
#define __grid_constant__
struct X3 { unsigned x, y, z; };
static thread_local X3 threadIdx, blockIdx, gridDim, blockDim;
static thread_local ucontext_t x_main;
static thread_local ucontext_t *x_self;
static thread_local X3 *x_idx;
static thread_local void **x_arguments;
static void x_yield() {
  ucontext_t *own = x_self;
  X3 idx = threadIdx;
  swapcontext(own, &x_main);
  threadIdx = idx;
  x_self = own;
}
#define __syncthreads() x_yield()
// The fibers of a block take turns from yield to yield: what one left is there when all had theirs.
template <class T> static T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  static thread_local T values[1024];
  unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  values[thread] = value;
  x_yield();
  T other = values[thread ^ mask];
  x_yield();
  return other;
}
static float x_float(unsigned short b) { _Float16 h; memcpy(&h, &b, 2); return (float)h; }
static unsigned short x_half(float f) { _Float16 h = (_Float16)f; unsigned short b; memcpy(&b, &h, 2); return b; }
template <class I> static I x_integer(float a, float limit, I low, I high, I nan) {
  return a != a ? nan : a >= limit ? high : a <= (float)low ? low : (I)a;
}
static int __float2int_rz(float a) { return x_integer<int>(a, 2147483648.0f, -2147483647 - 1, 2147483647, 0); }
static unsigned __float2uint_rz(float a) { return x_integer<unsigned>(a, 4294967296.0f, 0, 4294967295u, 0); }
static long long __float2ll_rz(float a) {
  long long low = -9223372036854775807ll - 1;
  return x_integer<long long>(a, 9223372036854775808.0f, low, 9223372036854775807ll, low);
}
static unsigned long long __float2ull_rz(float a) {
  return x_integer<unsigned long long>(a, 18446744073709551616.0f, 0, ~0ull, 1ull << 63);
}
static int __popc(unsigned a) { return __builtin_popcount(a); }
static int __clz(int a) { return a ? __builtin_clz(a) : 32; }
static int __ffs(int a) { return __builtin_ffs(a); }
static unsigned __brev(unsigned a) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (a >> i & 1) << (31 - i);
  return r;
}
static int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
  return c;
}
static unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}
template <class T> static T atomicAdd(T *p, T v) { T old = *p; *p += v; return old; }
template <class T> static T atomicMax(T *p, T v) { T old = *p; if (v > old) *p = v; return old; }
template <class T> static T atomicMin(T *p, T v) { T old = *p; if (v < old) *p = v; return old; }
template <class T> static T atomicOr(T *p, T v) { T old = *p; *p |= v; return old; }
template <class T> static T atomicAnd(T *p, T v) { T old = *p; *p &= v; return old; }
template <class T> static T atomicXor(T *p, T v) { T old = *p; *p ^= v; return old; }
template <class T> static T atomicExch(T *p, T v) { T old = *p; *p = v; return old; }
template <class T> static T atomicCAS(T *p, T c, T v) { T old = *p; if (old == c) *p = v; return old; }
)";

// Runs a block's threads one after the other; with barriers, from one to the next.
static const char *const PLAIN_BLOCK = R"(
  for (unsigned c = 0; c < g[5]; c++) for (unsigned b = 0; b < g[4]; b++) for (unsigned d = 0; d < g[3]; d++) {
    threadIdx = {d, b, c};
    x_call(a);
  }
)";
static const char *const FIBER_BLOCK = R"(
  unsigned n = g[3] * g[4] * g[5];
  x_arguments = a;
  static thread_local vector<vector<char>> stacks;
  if (stacks.size() < n) stacks.resize(n, vector<char>(65536));
  vector<ucontext_t> fibers(n);
  vector<char> is_done(n, 0);
  vector<X3> idx(n);
  for (unsigned i = 0; i < n; i++) {
    idx[i] = {i % g[3], i / g[3] % g[4], i / g[3] / g[4]};
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = stacks[i].data();
    fibers[i].uc_stack.ss_size = stacks[i].size();
    fibers[i].uc_link = nullptr;
    makecontext(&fibers[i], (void (*)())+[] { x_fiber(); x_self = nullptr; setcontext(&x_main); }, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned i = 0; i < n; i++) {
      if (is_done[i]) continue;
      x_idx = &idx[i];
      x_self = &fibers[i];
      swapcontext(&x_main, &fibers[i]);
      if (x_self) any = true; else is_done[i] = 1;
    }
  }
)";

struct Program {
  std::string source, log, image;
};

static void replace(std::string &text, const std::string &what, const std::string &with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
}

// The types of a list of parameters.
static std::vector<std::string> types_of(const std::string &parameters) {
  std::vector<std::string> types;
  std::string word;
  int depth = 0;
  for (char c : parameters + ",") {
    depth += (c == '<') - (c == '>');
    if (c != ',' || depth != 0) {
      word += c;
    } else if (word.find_first_not_of(' ') != std::string::npos) {
      word.erase(word.find_last_of(' '));
      types.push_back(word);
      word.clear();
    }
  }
  return types;
}

static std::string for_processor(std::string text) {
  replace(text, R"(asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a.b));)", "r = x_float(a.b);");
  replace(text, R"(asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.b) : "f"(a));)", "r.b = x_half(a);");
  replace(text, R"(asm(name ".rn.f16 %0, %1, %2;" : "=h"(r.b) : "h"(a.b), "h"(b.b));)",
          "float x = x_float(a.b), y = x_float(b.b); "
          "r.b = x_half(name[0] == 'a' ? x + y : name[0] == 's' ? x - y : x * y);");
  replace(text, R"(asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(r.b) : "h"(a.b), "h"(b.b), "h"(c.b));)",
          "r.b = x_half(fmaf(x_float(a.b), x_float(b.b), x_float(c.b)));");
  size_t kernel = text.find("extern \"C\" __global__ void __launch_bounds__(");
  size_t begin = text.find(") ", kernel) + 2, open = text.find("(", begin), end = text.find(") {", open);
  std::string name = text.substr(begin, open - begin);
  auto types = types_of(text.substr(open + 1, end - open - 1));
  bool has_barriers = text.find("__syncthreads();") != std::string::npos ||
                      text.find("= w_shuffle_xor(") != std::string::npos;
  std::ostringstream out;
  out << text << "\nstatic void x_call(void **a) {\n  " << name << "(";
  for (size_t i = 0; i < types.size(); i++) out << (i ? ", " : "") << "*(" << types[i] << " *)a[" << i << "]";
  out << ");\n}\nstatic void x_fiber() { threadIdx = *x_idx; x_call(x_arguments); }\n"
      << "extern \"C\" void " << name << "_run(void **a, unsigned *g, int asks_for_sizes) {\n"
      << "if (asks_for_sizes) {\n  g[0] = " << types.size() << ";\n";
  for (size_t i = 0; i < types.size(); i++) out << "  g[" << i + 1 << "] = sizeof(" << types[i] << ");\n";
  out << "  return;\n}\ngridDim = {g[0], g[1], g[2]};\nblockDim = {g[3], g[4], g[5]};\n"
      << "for (unsigned z = 0; z < g[2]; z++) for (unsigned y = 0; y < g[1]; y++) for (unsigned x = 0; x < g[0]; x++) {\n"
      << "  blockIdx = {x, y, z};" << (has_barriers ? FIBER_BLOCK : PLAIN_BLOCK) << "}\n}\n";
  return out.str();
}

// How everything is compiled: what is compiled ahead serves those with the same options alone. With EMULATOR_NO_NANS it is
// taken that a comparison never sees NaN, as drivers of Vulkan's take it for the same kernels.
static std::string compiler() {
  std::string command = "c++ -std=c++17 -w -fno-strict-aliasing -ffp-contract=off -fwrapv -mfma -shared -fPIC";
  return command + (getenv("EMULATOR_NO_NANS") ? " -O2 -ffinite-math-only -fno-signed-zeros" : " -O1");
}

static uint64_t hash_of(const std::string &text, uint64_t hash = 1469598103934665603ull) {
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

// What stands before every kernel, compiled once in the folder; a kernel takes less time than that does.
static std::string before(const std::string &folder) {
  static std::mutex lock;
  std::lock_guard<std::mutex> guard(lock);
  std::string header = folder + "/" + std::to_string(hash_of(BEFORE, hash_of(compiler()))) + ".h";
  std::string own = header + "-" + std::to_string(getpid());
  if (access((header + ".gch").c_str(), R_OK) == 0) return header;
  std::ofstream(own) << BEFORE;
  rename(own.c_str(), header.c_str());
  std::string command = compiler() + " -x c++-header -o '" + own + ".gch' '" + header + "'";
  if (system(command.c_str()) == 0) rename((own + ".gch").c_str(), (header + ".gch").c_str());
  return header;
}

extern "C" {

Code nvrtcVersion(int *major, int *minor) { return *major = 12, *minor = 99, 0; }
Code nvrtcGetNumSupportedArchs(int *n) { return *n = 2, 0; }
Code nvrtcGetSupportedArchs(int *archs) { return archs[0] = 80, archs[1] = 90, 0; }
Code nvrtcCreateProgram(Handle *program, const char *source, const char *, int, const char *const *,
                        const char *const *) {
  return *program = new Program{source, "", ""}, 0;
}
Code nvrtcDestroyProgram(Handle *program) {
  delete (Program *)*program;
  return 0;
}
Code nvrtcCompileProgram(Handle handle, int, const char *const *) {
  auto &program = *(Program *)handle;
  std::string text = for_processor(program.source);
  const char *given = getenv("EMULATOR_DIR");
  std::string folder = given ? given : "/tmp", base = folder + "/" + std::to_string(hash_of(text, hash_of(BEFORE, hash_of(compiler()))));
  program.image = base + ".so";
  if (access(program.image.c_str(), R_OK) == 0) return 0;
  static std::atomic<int> count{0};
  std::string own = base + "-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  std::ofstream(own + ".cpp") << text;
  std::string command = compiler() + " -include '" + before(folder) + "' -o '" + own + ".so' '" + own +
                        ".cpp' 2> '" + own + ".log'";
  bool failed = system(command.c_str()) != 0;
  if (failed) {
    std::ostringstream log;
    log << std::ifstream(own + ".log").rdbuf();
    program.log = log.str();
  } else {
    rename((own + ".so").c_str(), program.image.c_str());
  }
  unlink((own + ".cpp").c_str());
  unlink((own + ".log").c_str());
  return failed ? 6 : 0;
}

static Code size_of(const std::string &text, size_t *n) { return *n = text.size() + 1, 0; }
static Code copy_of(const std::string &text, char *to) { return memcpy(to, text.c_str(), text.size() + 1), 0; }

Code nvrtcGetProgramLogSize(Handle program, size_t *n) { return size_of(((Program *)program)->log, n); }
Code nvrtcGetProgramLog(Handle program, char *to) { return copy_of(((Program *)program)->log, to); }
Code nvrtcGetCUBINSize(Handle program, size_t *n) { return size_of(((Program *)program)->image, n); }
Code nvrtcGetCUBIN(Handle program, char *to) { return copy_of(((Program *)program)->image, to); }
Code nvrtcGetPTXSize(Handle program, size_t *n) { return size_of(((Program *)program)->image, n); }
Code nvrtcGetPTX(Handle program, char *to) { return copy_of(((Program *)program)->image, to); }

}  // extern "C"
