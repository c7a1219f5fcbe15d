// Failure of a call as a value. Inside cpp/ nothing throws; the border (FFI or
// nanobind) turns a Status into an error of its own kind.
#pragma once

#include <sstream>
#include <string>
#include <utility>

namespace dynemb {

// Mirrored by the table of codes in dynemb_jax/errors.py.
enum class StatusCode {
  kOk,
  kInvalidArgument,
  kConfig,
  kStaleState,
  kTableFull,
  kTooManyOutstanding,
  kMemory,
  kClosed,
  kWrongDevice,
  kDevice,  // CUDA itself failed
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "dynemb[CODE]: message": the prefix survives XLA and names our exception.
  std::string ToString() const { return std::string("dynemb[") + Name(code_) + "]: " + message_; }

  static const char* Name(StatusCode code) {
    switch (code) {
      case StatusCode::kOk:
        return "OK";
      case StatusCode::kInvalidArgument:
        return "INVALID_ARGUMENT";
      case StatusCode::kConfig:
        return "CONFIG";
      case StatusCode::kStaleState:
        return "STALE_STATE";
      case StatusCode::kTableFull:
        return "TABLE_FULL";
      case StatusCode::kTooManyOutstanding:
        return "TOO_MANY_OUTSTANDING";
      case StatusCode::kMemory:
        return "MEMORY";
      case StatusCode::kClosed:
        return "CLOSED";
      case StatusCode::kWrongDevice:
        return "WRONG_DEVICE";
      case StatusCode::kDevice:
        return "DEVICE";
    }
    return "UNKNOWN";
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <class... Parts>
Status MakeStatus(StatusCode code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Status(code, text.str());
}

template <class... Parts>
Status InvalidArgument(const Parts&... parts) {
  return MakeStatus(StatusCode::kInvalidArgument, parts...);
}
template <class... Parts>
Status StaleState(const Parts&... parts) {
  return MakeStatus(StatusCode::kStaleState, parts...);
}
template <class... Parts>
Status TableFull(const Parts&... parts) {
  return MakeStatus(StatusCode::kTableFull, parts...);
}
template <class... Parts>
Status MemoryError(const Parts&... parts) {
  return MakeStatus(StatusCode::kMemory, parts...);
}

#define DYNEMB_RETURN_IF_ERROR(expression)                                      \
  do {                                                                          \
    if (::dynemb::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

}  // namespace dynemb
