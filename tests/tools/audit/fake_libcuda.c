/* A driver with one captured graph, for the reader's tests: the functions and structures of cuda.h that the reader uses, as that header lays them out.
 *
 *   0 memset -> 1 kernel (arguments one by one) -> 2 child {0 memcpy -> 1 kernel (all arguments as one buffer)} -> 3 host -> 4 alloc -> 5 free
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct Node* CUgraphNode;
typedef struct Graph* CUgraph;

typedef struct {
    void* func;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void** kernelParams;
    void** extra;
    void* kern;
    void* ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void* srcHost;
    CUdeviceptr srcDevice;
    void* srcArray;
    void* reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void* dstHost;
    CUdeviceptr dstDevice;
    void* dstArray;
    void* reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
    int type;
    int id;
} CUmemLocation;

typedef struct {
    int allocType;
    int handleTypes;
    CUmemLocation location;
    void* win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
    CUmemPoolProps poolProps;
    const void* accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    void* fn;
    void* userData;
} CUDA_HOST_NODE_PARAMS;

typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

struct Node {
    int type;
    int number;
};
struct Graph {
    struct Node* nodes;
    size_t count;
    int (*edges)[2];
    size_t joined;
};

static struct Node inner[2] = {{1, 0}, {0, 1}};
static int inner_edges[1][2] = {{0, 1}};
static struct Graph child = {inner, 2, inner_edges, 1};
static struct Node outer[6] = {{2, 0}, {0, 0}, {4, 0}, {3, 0}, {10, 0}, {11, 0}};
static int outer_edges[5][2] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}};
struct Graph captured = {outer, 6, outer_edges, 5};
/* a kernel whose parameters nothing describes, one that has none, and a CUkernel in the place of a CUfunction */
static struct Node lone[3] = {{0, 2}, {0, 3}, {0, 4}};
static struct Graph odd = {lone, 3, NULL, 0};

static uint64_t pointer = 0x7f1200001000ull;
static float factor = 0.5f;
static struct {
    uint64_t first, second;
} pair = {0x7f1200002000ull, 42};
static void* arguments[3] = {&pointer, &factor, &pair};
static unsigned char buffer[24];
static size_t buffer_size = sizeof buffer;
static void* extra[5] = {(void*)1, buffer, (void*)2, &buffer_size, NULL};

CUgraph fake_graph(void) {
    memcpy(buffer, &pointer, 8);
    memcpy(buffer + 8, &factor, 4);
    memcpy(buffer + 16, &pair.first, 8);
    return &captured;
}

CUgraph fake_odd_graph(void) { return &odd; }

CUresult cuGetErrorName(CUresult code, const char** name) {
    *name = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    if (graph != &captured && graph != &child && graph != &odd) return 1;
    if (nodes != NULL)
        for (size_t i = 0; i < *count; ++i) nodes[i] = &graph->nodes[i];
    *count = graph->count;
    return 0;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
    if (from != NULL && data == NULL) return 1; /* as the driver refuses to lose what edges say */
    if (from != NULL)
        for (size_t i = 0; i < *count; ++i) {
            from[i] = &graph->nodes[graph->edges[i][0]];
            to[i] = &graph->nodes[graph->edges[i][1]];
            memset(&data[i], 0, sizeof data[i]);
        }
    *count = graph->joined;
    return 0;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int* type) {
    *type = node->type;
    return 0;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
    *graph = node->type == 4 ? &child : NULL;
    return 0;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* p) {
    memset(p, 0, sizeof *p);
    p->gridDimX = 4, p->gridDimY = 5, p->gridDimZ = 6;
    p->blockDimX = 32, p->blockDimY = 2, p->blockDimZ = 1;
    p->sharedMemBytes = 1024;
    if (node->number == 0)
        p->func = (void*)0x100, p->kernelParams = arguments;
    else if (node->number >= 2)
        p->func = (void*)(node->number == 4 ? 0x200 : 0x300), p->kernelParams = node->number == 3 ? NULL : arguments;
    else
        p->kern = (void*)0x200, p->extra = extra;
    return 0;
}

static CUresult info(size_t index, size_t* offset, size_t* size, const size_t* sizes) {
    static const size_t offsets[3] = {0, 8, 16};
    if (index >= 3) return 1;
    *offset = offsets[index];
    *size = sizes[index];
    return 0;
}
CUresult cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
    static const size_t sizes[3] = {8, 4, 16};
    return function == (void*)0x100 ? info(index, offset, size, sizes) : 1;
}
CUresult cuKernelGetParamInfo(void* kernel, size_t index, size_t* offset, size_t* size) {
    static const size_t sizes[3] = {8, 4, 8};
    return kernel == (void*)0x200 ? info(index, offset, size, sizes) : 1;
}
CUresult cuFuncGetName(const char** name, void* function) {
    *name = "_ZN2at6native4reluEPfi";
    return function == (void*)0x100 ? 0 : 1;
}
CUresult cuKernelGetName(const char** name, void* kernel) {
    *name = "triton_kernel";
    return kernel == (void*)0x200 ? 0 : 1;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* p) {
    memset(p, 0, sizeof *p);
    (void)node;
    p->srcMemoryType = 1, p->srcHost = (void*)0x555500001000ull, p->srcXInBytes = 16;
    p->dstMemoryType = 2, p->dstDevice = 0x7f1200003000ull, p->dstPitch = 256;
    p->WidthInBytes = 64, p->Height = 3, p->Depth = 1;
    return 0;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* p) {
    (void)node;
    CUDA_MEMSET_NODE_PARAMS found = {0x7f1200004000ull, 0, 0xff, 4, 32, 1};
    *p = found;
    return 0;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* p) {
    (void)node;
    memset(p, 0x5a, sizeof *p);
    p->bytesize = 512;
    p->dptr = 0x7f1300000000ull;
    return 0;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
    (void)node;
    *address = 0x7f1300000000ull;
    return 0;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* p) {
    (void)node;
    p->fn = (void*)0xabc, p->userData = NULL;
    return 0;
}

CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
    if (address >> 40 != 0x7f) return 1;
    *(unsigned*)value = attribute == 2 ? 2 : address == 0x7f1400000000ull;
    return 0;
}
