// What the runtime objects throw. The kinds are those of the project's contracts; the binding makes Python's exceptions
// of them, which never cross the table below.
#pragma once

#include <stdexcept>
#include <string>

namespace ost::hip {

enum class Kind {
    kInvalid,      // a wrong argument
    kRuntime,      // the backend failed
    kLogic,        // the right call at the wrong time
    kCapacity,     // no room
    kUnavailable,  // no library, no driver, no device
};

class Failure : public std::runtime_error {
  public:
    Failure(Kind kind, const std::string& text, const std::string& hint = "")
        : std::runtime_error(text), kind(kind), hint(hint) {}
    Kind kind;
    std::string hint;
};

}  // namespace ost::hip
