/* The step-table boundary between the planner's data and a device.
 *
 * Opaque handles, status codes, a thread-local error text and sized structs; no exceptions and no C++ types cross it.
 * Everything a step needs was decided before it gets here: a kernel by number, byte ranges by address, scalars by value.
 * The native side knows no graph, no policy and allocates nothing once a table is loaded.
 */
#ifndef OSTINATO_H
#define OSTINATO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OST_ABI_VERSION 2u

typedef enum ost_status {
    OST_OK = 0,
    OST_INVALID_ARGUMENT = 1,
    OST_OUT_OF_RANGE = 2, /* a token id, row or block index in device memory was out of range */
    OST_LIFECYCLE = 3,
    OST_BACKEND = 4,
    OST_CAPACITY = 5,
    OST_INTERRUPTED = 6,
    OST_NOT_FOUND = 7,
    OST_HOST = 8 /* a function of the host language failed; it knows why */
} ost_status;

/* Numbers of ir.types.DType; a test compares the two lists. */
typedef enum ost_dtype {
    OST_F32 = 0,
    OST_F16 = 1,
    OST_BF16 = 2,
    OST_F64 = 3,
    OST_I64 = 4,
    OST_I32 = 5,
    OST_I8 = 6,
    OST_U8 = 7,
    OST_BOOL = 8,
    OST_Q8_0 = 16,
    OST_Q4_0 = 17,
    OST_Q4_1 = 18,
    OST_Q5_0 = 19,
    OST_Q5_1 = 20,
    OST_IQ4_NL = 21,
    OST_Q4_K = 22,
    OST_Q5_K = 23,
    OST_Q6_K = 24
} ost_dtype;

typedef enum ost_step_kind {
    OST_STEP_LAUNCH = 0,
    OST_STEP_GEMM = 1,       /* reserved: vendor GEMM */
    OST_STEP_COPY = 2,       /* operand 0 -> operand 1, equal byte counts */
    OST_STEP_FILL = 3,       /* operand 0 filled with the byte in param 0 */
    OST_STEP_COLLECTIVE = 4, /* reserved */
    OST_STEP_CALL = 5        /* function number `kernel` of the host language, which knows its operands: none stand here */
} ost_step_kind;

typedef union ost_param {
    int64_t i;
    double f;
} ost_param;

typedef struct ost_operand {
    void* address;  /* null: the optional operand is absent. Aligned to its element; sources of packing need not be */
    uint64_t bytes; /* accessible bytes at address; a kernel whose parameters ask for more refuses to run */
} ost_operand;

typedef struct ost_step {
    uint32_t struct_size; /* sizeof(ost_step) of the caller */
    uint32_t kind;        /* ost_step_kind */
    uint32_t kernel;      /* from ost_kernel_find, for launches */
    uint32_t lane;        /* 0; more lanes are reserved */
    uint32_t operand_count;
    uint32_t param_count;
    uint32_t wait_count;
    uint32_t signal_count;
    const ost_operand* operands;
    const ost_param* params;
    const uint32_t* waits;   /* events this step waits for; only needed between lanes */
    const uint32_t* signals; /* events this step signals */
} ost_step;

typedef struct ost_device_options {
    uint32_t struct_size;
    uint32_t threads; /* 0: one per physical core the process may use */
    const char* isa;  /* null or "auto": the best unit the CPU has; else portable, avx2, avx512, avx512_bf16 */
} ost_device_options;

typedef struct ost_device_info {
    uint32_t struct_size;
    uint32_t abi_version;
    uint32_t threads;
    uint32_t kernel_count;
    const char* isa;       /* unit in use; static storage */
    const char* available; /* comma-separated units this build and CPU can run; static storage */
    const char* cpu;       /* model name; static storage */
} ost_device_info;

typedef struct ost_device ost_device;
typedef struct ost_table ost_table;

/* Text of the last failure on this thread; never null. */
const char* ost_last_error(void);

ost_status ost_device_create(const ost_device_options* options, ost_device** device);
ost_status ost_device_query(const ost_device* device, ost_device_info* info);
void ost_device_destroy(ost_device* device);

/* Zeroed memory; alignment is a power of two. */
ost_status ost_memory_allocate(ost_device* device, size_t bytes, size_t alignment, void** address);
ost_status ost_memory_free(ost_device* device, void* address);

ost_status ost_kernel_find(const ost_device* device, const char* name, uint32_t* kernel);

/* Copies the steps and all they point to; checks kernels, operand and parameter counts, null addresses, ranges that
 * wrap and events. `failed_step` (may be null) receives the step that was refused, OST_NO_STEP where none was. The
 * table keeps what it needs of its device, which may be destroyed before it; memory of the device lives as long. */
#define OST_NO_STEP SIZE_MAX
ost_status ost_table_create(ost_device* device, const ost_step* steps, size_t count, ost_table** table,
                            size_t* failed_step);
void ost_table_destroy(ost_table* table);

/* Runs steps [first, first + count). Allocates nothing. `failed_step` (may be null) receives the step that set a
 * non-zero status, OST_NO_STEP where none did. Out-of-range values met by a step give OST_OUT_OF_RANGE after the run;
 * memory stays in bounds. Runs of one device wait for each other. */
ost_status ost_table_run(ost_table* table, size_t first, size_t count, size_t* failed_step);

/* What a run asks of the host language, always on the calling thread, which holds the device meanwhile: a run that is
 * started from within on the same device gives OST_LIFECYCLE, since it could only wait for itself.
 *
 * `poll(context)` is called before each step, and a non-zero answer stops the run there with OST_INTERRUPTED: how a host
 * language looks at its signals. `call(context, number)` is a step of kind OST_STEP_CALL; a non-zero answer stops the run
 * there with OST_HOST. Either may be null; a table with such steps does not run without `call`. */
typedef int (*ost_poll)(void* context);
typedef int (*ost_call)(void* context, uint32_t number);
typedef struct ost_host {
    uint32_t struct_size; /* sizeof(ost_host) of the caller */
    ost_poll poll;
    ost_call call;
    void* context;
} ost_host;
ost_status ost_table_run_hosted(ost_table* table, size_t first, size_t count, const ost_host* host,
                                size_t* failed_step);

/* What a table of this one launch, copy or fill would do, without making one: the step is checked and run, nothing is
 * copied or allocated. For callers whose addresses differ from call to call. Waits and signals are of tables alone. */
ost_status ost_step_run(ost_device* device, const ost_step* step);

/* How many steps ost_step_run ran on the device: what a caller who hands over one step at a time may count on. */
uint64_t ost_device_steps_run(const ost_device* device);

/* Asks a run in progress on another thread, or the next one, to stop between two steps with OST_INTERRUPTED. */
ost_status ost_table_interrupt(ost_table* table);

#ifdef __cplusplus
}
#endif
#endif
