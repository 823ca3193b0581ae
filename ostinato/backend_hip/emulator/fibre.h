// A stack with something that runs on it, and the switch from one to another.
//
// By hand where that is written down, because a barrier of a block is hundreds of switches and each of the C library's
// costs a system call; the sanitized build keeps to the library's.
#pragma once

#include <stddef.h>
#include <ucontext.h>

namespace emulator {

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
struct Context {
    void* stack_pointer;
};
extern "C" __attribute__((visibility("hidden"))) void emulator_change(Context* from, const Context* to);
asm(R"(
    .text
    .hidden emulator_change
    .globl emulator_change
emulator_change:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov (%rsi), %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
static void make(Context& context, char* stack, size_t size, void (*entry)()) {
    auto** top = reinterpret_cast<void**>(reinterpret_cast<size_t>(stack + size) & ~size_t{15});
    *--top = nullptr;  // where `entry` would return to, which it does not
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    context.stack_pointer = top;
}
static void change(Context& from, Context& to) { emulator_change(&from, &to); }
#else
struct Context {
    ucontext_t state;
};
static void make(Context& context, char* stack, size_t size, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = size;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}
static void change(Context& from, Context& to) { swapcontext(&from.state, &to.state); }
#endif

}  // namespace emulator
