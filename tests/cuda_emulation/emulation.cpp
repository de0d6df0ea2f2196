// Runs the threads of a grid, block after block. See cuda_runtime.h.
#include <dlfcn.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#define __sanitizer_start_switch_fiber(...)
#define __sanitizer_finish_switch_fiber(...)
#endif

namespace {
constexpr size_t kSharedBytes = 48 * 1024;
}

namespace onnxpool::cuda {
uint4 shared_memory[kSharedBytes / sizeof(uint4)];  // declared extern __shared__ by the kernels
}

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kParameterBytes = 32764;

enum class State { kRuns, kWaitsForBlock, kWaitsForWarp };

using Jump = void* [5];  // as __builtin_setjmp asks for

// Runs threads from their start, block after block; holds the one that waits.
struct Fibre {
    Jump jump;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    void* fake_stack = nullptr;  // AddressSanitizer's
    unsigned thread = 0;
    unsigned exchanges = 0;  // of the thread with its warp
    State state = State::kRuns;
    bool is_started = false;
    bool done = false;
};

std::mutex mutex;
std::vector<std::unique_ptr<Fibre>> fibres;
Jump scheduler_jump;
Fibre* running = nullptr;
const std::function<void()>* thread_body = nullptr;
unsigned started = 0;  // threads of the block
bool backwards = false;
Slot both_slots[2][1024];      // two, since a thread may leave its next value before all have taken the last one
unsigned both_ballots[2][32];  // likewise: the lanes of a warp that have said yes
bool vote = false, last_vote = false;  // of the block: whether a thread has said yes, and before the last barrier
std::set<const void*> launched;
[[maybe_unused]] const void* scheduler_stack = nullptr;
[[maybe_unused]] size_t scheduler_stack_size = 0;

void set_thread(unsigned thread) { threadIdx = dim3(thread, 0, 0); }

// The compiler's jumps make no system calls, as contexts do. AddressSanitizer, which is told of the stacks, would
// forget all it knows of one before each jump: so jumps are in functions that it does not see.
#define UNSEEN [[gnu::noinline, gnu::no_sanitize_address]]

UNSEEN void jump_to(Jump& target) { __builtin_longjmp(target, 1); }

UNSEEN void leave(Fibre& fibre) {
    if (__builtin_setjmp(fibre.jump) == 0) jump_to(scheduler_jump);
}

void to_scheduler(Fibre& fibre) {
    __sanitizer_start_switch_fiber(&fibre.fake_stack, scheduler_stack, scheduler_stack_size);
    leave(fibre);
    __sanitizer_finish_switch_fiber(fibre.fake_stack, &scheduler_stack, &scheduler_stack_size);
}

void fibre_main() {
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
    Fibre& fibre = *running;
    for (;;) {
        while (started < blockDim.x) {
            fibre.thread = backwards ? blockDim.x - 1 - started : started;
            ++started;
            fibre.exchanges = 0;
            set_thread(fibre.thread);
            (*thread_body)();
        }
        fibre.done = true;
        to_scheduler(fibre);
    }
}

UNSEEN void start(Fibre& fibre) {
    fibre.is_started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fibre.stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, fibre_main, 0);
    setcontext(&context);
}

UNSEEN void enter(Fibre& fibre) {
    if (__builtin_setjmp(scheduler_jump) != 0) return;
    if (!fibre.is_started) start(fibre);
    jump_to(fibre.jump);
}

void resume(Fibre& fibre) {
    running = &fibre;
    fibre.state = State::kRuns;
    fibre.done = false;
    set_thread(fibre.thread);
    [[maybe_unused]] void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fibre.stack.get(), kStackBytes);
    enter(fibre);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void wait(State state) {
    Fibre& fibre = *running;
    fibre.state = state;
    to_scheduler(fibre);
}

// False if some threads wait for others that never come.
bool run_block() {
    started = 0;
    size_t used = 0;
    while (started < blockDim.x) {
        if (used == fibres.size()) fibres.push_back(std::make_unique<Fibre>());
        resume(*fibres[used++]);
    }
    std::vector<Fibre*> waiting;
    for (;;) {
        waiting.clear();
        std::vector<unsigned> waiting_of_warp(blockDim.x / 32 + 1);
        unsigned for_block = 0;
        for (size_t i = 0; i < used; ++i) {
            if (fibres[i]->done) continue;
            waiting.push_back(fibres[i].get());
            for_block += fibres[i]->state == State::kWaitsForBlock;
            waiting_of_warp[fibres[i]->thread / 32] += fibres[i]->state == State::kWaitsForWarp;
        }
        if (waiting.empty()) return true;
        if (for_block == blockDim.x) last_vote = std::exchange(vote, false);
        if (backwards) std::reverse(waiting.begin(), waiting.end());
        bool progress = false;
        for (Fibre* fibre : waiting) {
            const unsigned warp = fibre->thread / 32;
            const unsigned warp_size = std::min(32u, blockDim.x - warp * 32);
            if (fibre->state == State::kWaitsForBlock ? for_block == blockDim.x : waiting_of_warp[warp] == warp_size) {
                resume(*fibre);
                progress = true;
            }
        }
        if (!progress) return false;
    }
}

}  // namespace

void wait_for_block() { wait(State::kWaitsForBlock); }
bool any_of_block(bool predicate) {
    vote |= predicate;
    wait_for_block();
    return last_vote;
}
void wait_for_warp() { wait(State::kWaitsForWarp); }
Slot& own_slot() { return both_slots[++running->exchanges % 2][running->thread]; }
const Slot* slots() { return both_slots[running->exchanges % 2]; }
unsigned ballot(bool predicate) {
    const unsigned thread = running->thread, lane = 1u << thread % 32;
    unsigned& lanes = both_ballots[++running->exchanges % 2][thread / 32];
    lanes = predicate ? lanes | lane : lanes & ~lane;
    wait_for_warp();
    return lanes;
}

cudaError_t run(const cudaLaunchConfig_t& config, const void* kernel, size_t parameter_bytes,
                const std::function<void()>& body) {
    const std::lock_guard lock(mutex);
    const dim3& grid = config.gridDim;
    const dim3& block = config.blockDim;
    const bool fits = grid.x >= 1 && grid.x <= 0x7fffffff && grid.y == 1 && grid.z == 1 && block.x >= 1 &&
                      block.x <= 1024 && block.y == 1 && block.z == 1 && config.dynamicSmemBytes <= kSharedBytes &&
                      parameter_bytes <= kParameterBytes;
    if (!fits) return cudaErrorInvalidConfiguration;
    launched.insert(kernel);
    gridDim = grid;
    blockDim = block;
    thread_body = &body;
    auto* shared = reinterpret_cast<unsigned char*>(onnxpool::cuda::shared_memory);
    ASAN_POISON_MEMORY_REGION(shared + config.dynamicSmemBytes, kSharedBytes - config.dynamicSmemBytes);
    cudaError_t error = cudaSuccess;
    for (unsigned b = 0; b < grid.x && error == cudaSuccess; ++b) {
        blockIdx = dim3(backwards ? grid.x - 1 - b : b, 0, 0);
        std::memset(shared, 0xff, config.dynamicSmemBytes);  // NaN
        if (run_block()) continue;
        fibres.clear();  // some of which never come to their ends
        error = cudaErrorLaunchFailure;
    }
    ASAN_UNPOISON_MEMORY_REGION(shared + config.dynamicSmemBytes, kSharedBytes - config.dynamicSmemBytes);
    return error;
}

}  // namespace emulation

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    *value = 1;  // multiprocessor, so that small tensors reach the kernels for large ones
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
    std::memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "unspecified launch failure";
}

// For the tests: the order of threads and blocks, and the names of the kernels that have been launched.
extern "C" {

void emulation_run_backwards(int backwards) { emulation::backwards = backwards; }

const char* emulation_launched_kernels() {
    static std::string names;
    names.clear();
    for (const void* kernel : emulation::launched) {
        Dl_info symbol;
        if (dladdr(kernel, &symbol) && symbol.dli_sname) names += std::string(symbol.dli_sname) + "\n";
    }
    return names.c_str();
}
}
