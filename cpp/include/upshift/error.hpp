// Errors, in the form that the caller chooses: thrown as std::system_error, or returned in a
// result<T>.
//
//     auto data = co_await stream.recv();                       // throws std::system_error
//     auto tried = co_await stream.recv(upshift::as_result);    // result<bytes>: no exception
//
// Without exceptions (-fno-exceptions) an error of a call of the first form ends the process with a
// message.
#pragma once

#include <upshift.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#if defined(__cpp_exceptions)
#define UPSHIFT_EXCEPTIONS 1
#define UPSHIFT_VARIANT v1
#else
#define UPSHIFT_EXCEPTIONS 0
#define UPSHIFT_VARIANT v1_without_exceptions
#endif

// Files compiled with and without exceptions may be linked together: their inline functions have
// different names.
#define UPSHIFT_BEGIN \
  namespace upshift { \
  inline namespace UPSHIFT_VARIANT {
#define UPSHIFT_END \
  } \
  }

UPSHIFT_BEGIN

/// The category of errors that the kernel does not have: UPSHIFT_ENAME, a host name without an
/// address.
inline const std::error_category& name_category() noexcept {
  static const struct final : std::error_category {
    const char* name() const noexcept override { return "upshift name"; }
    std::string message(int) const override { return "the host name cannot be resolved: no name server knows it, or none answers"; }
  } category;
  return category;
}

namespace detail {

/// Returns the error of a positive errno.
inline std::error_code error_of(int code) noexcept {
  return std::error_code(code, code == UPSHIFT_ENAME ? name_category() : std::system_category());
}

/// Throws the error of a negative errno.
[[noreturn]] inline void raise(std::int64_t code, [[maybe_unused]] const char* where = nullptr) {
  const std::error_code error = error_of(static_cast<int>(-code));
#if UPSHIFT_EXCEPTIONS
  if (where != nullptr) throw std::system_error(error, where);
  throw std::system_error(error);
#else
  std::fprintf(stderr, "upshift: %s: use upshift::as_result to handle errors\n", error.message().c_str());
  std::abort();
#endif
}

}  // namespace detail

/// A value or an error: the required part of std::expected<T, std::error_code>, in C++20.
template <class T = void>
class [[nodiscard]] result {
 public:
  using value_type = T;

  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}

  /// Creates the error of a negative errno.
  static result failure(std::int64_t code) { return result(static_cast<int>(-code), 0); }

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  /// Returns the error; none if there is a value.
  std::error_code error() const noexcept {
    return has_value() ? std::error_code() : detail::error_of(*std::get_if<1>(&state_));
  }

  /// Returns the value, or throws the error.
  T& value() & { return check(), *std::get_if<0>(&state_); }
  const T& value() const& { return check(), *std::get_if<0>(&state_); }
  T&& value() && { return check(), std::move(*std::get_if<0>(&state_)); }

  /// Returns the value, or `other` instead of an error.
  template <class U>
  T value_or(U&& other) && {
    return has_value() ? std::move(*std::get_if<0>(&state_)) : static_cast<T>(std::forward<U>(other));
  }

  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }

 private:
  result(int code, int) : state_(std::in_place_index<1>, code) {}

  void check() const {
    if (!has_value()) detail::raise(-*std::get_if<1>(&state_));
  }

  std::variant<T, int> state_;
};

namespace detail {
template <class>
inline constexpr bool is_result = false;
template <class T>
inline constexpr bool is_result<result<T>> = true;
}  // namespace detail

/// Success or an error.
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;

  result() = default;
  static result failure(std::int64_t code) {
    result failed;
    failed.code_ = static_cast<int>(-code);
    return failed;
  }
  bool has_value() const noexcept { return code_ == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  std::error_code error() const noexcept { return code_ == 0 ? std::error_code() : detail::error_of(code_); }
  void value() const {
    if (code_ != 0) detail::raise(-code_);
  }

 private:
  int code_ = 0;
};

/// The form of a call that throws: the default.
struct throwing_t {
  static constexpr bool throws = true;
};

/// The form of a call that returns a result.
struct as_result_t {
  static constexpr bool throws = false;
};

inline constexpr throwing_t throwing{};
inline constexpr as_result_t as_result{};

template <class M>
concept error_mode = std::is_same_v<M, throwing_t> || std::is_same_v<M, as_result_t>;

namespace detail {

/// Returns the result of `make`, or the error, in the form of the mode.
template <error_mode M, class F>
auto value_or_error(std::int64_t code, F make, const char* where = nullptr) {
  using T = decltype(make());
  if constexpr (M::throws) {
    if (code < 0) raise(code, where);
    return make();
  } else if constexpr (std::is_void_v<T>) {
    if (code < 0) return result<void>::failure(code);
    make();
    return result<void>();
  } else {
    if (code < 0) return result<T>::failure(code);
    return result<T>(make());
  }
}

}  // namespace detail

UPSHIFT_END
