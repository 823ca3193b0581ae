// Whether a function of ours and one of a vendor's header are called alike: every parameter and the result in the same
// class (address, whole number, real number, struct by value) and of the same size. Types themselves differ on purpose.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace same {

template <class T>
constexpr int kind() {
    return std::is_void_v<T>             ? 0
           : std::is_pointer_v<T>        ? 1
           : std::is_floating_point_v<T> ? 2
           : std::is_class_v<T>          ? 3
                                         : 4;  // whole numbers and enumerations
}

template <class T>
constexpr size_t size() {
    if constexpr (std::is_void_v<T>) {
        return 0;
    } else {
        return sizeof(T);
    }
}

template <class A, class B>
constexpr bool alike = kind<A>() == kind<B>() && size<A>() == size<B>();

template <class A, class B>
struct Functions : std::false_type {};

template <class A, class... As, class B, class... Bs>
struct Functions<A (*)(As...), B (*)(Bs...)> {
    static constexpr bool parameters() {
        if constexpr (sizeof...(As) != sizeof...(Bs)) {
            return false;
        } else {
            return (alike<As, Bs> && ...);
        }
    }
    static constexpr bool value = alike<A, B> && parameters();
};

// A vendor's function may be noexcept and returns what must not be dropped; neither matters to a call.
template <class F>
struct Plain {
    using type = F;
};
template <class R, class... A>
struct Plain<R (*)(A...) noexcept> {
    using type = R (*)(A...);
};

template <class Ours, class Theirs>
constexpr bool function = Functions<Ours, typename Plain<Theirs>::type>::value;

}  // namespace same

#define SAME_FIELD(ours, our_field, theirs, their_field)                                        \
    static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #their_field);    \
    static_assert(sizeof(ours::our_field) == sizeof(theirs::their_field), "size of " #their_field)
#define SAME_NUMBER(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs)
