// The runtime: vCPUs, threads, rings.
#pragma once

#include <chrono>
#include <initializer_list>

#include "spawn.hpp"

UPSHIFT_BEGIN

/// Settings; see upshift_config.
struct config : upshift_config {
  config() noexcept { upshift_config_init(this); }
};

/// A runtime. One thread creates, uses and destroys it. Its destruction cancels every coroutine and
/// waits for the kernel's operations.
class runtime {
 public:
  runtime() : runtime(config()) {}

  explicit runtime(const config& settings) {
    if (upshift_abi_version() != UPSHIFT_ABI_VERSION) detail::raise(-ELIBBAD);
    const int code = upshift_runtime_new(&settings, &raw_);
    if (code < 0) detail::raise(code);
  }

  /// Creates a runtime without exceptions: returns a runtime or an error.
  static result<runtime> make(const config& settings = config()) {
    if (upshift_abi_version() != UPSHIFT_ABI_VERSION) return result<runtime>::failure(-ELIBBAD);
    upshift_runtime* raw = nullptr;
    const int code = upshift_runtime_new(&settings, &raw);
    if (code < 0) return result<runtime>::failure(code);
    return result<runtime>(runtime(raw));
  }

  runtime(runtime&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  runtime& operator=(runtime&&) = delete;
  ~runtime() {
    if (raw_ != nullptr) upshift_runtime_free(raw_);
  }

  /// Runs a task as the main coroutine on the calling thread. Returns its result or throws its
  /// exception. If the task is cancelled, throws `cancelled`; a result then has the error
  /// ECANCELED.
  template <class T, error_mode M = throwing_t>
  auto block_on(task<T> main, M = {}) {
    int code;
    const upshift_task root = detail::as_root(std::move(main), code);
    if constexpr (M::throws) {
      if (code == -ENOMEM) detail::no_memory();
    }
    void* data = nullptr;
    if (code == 0) code = upshift_runtime_block_on(raw_, root, &data);
#if UPSHIFT_EXCEPTIONS
    if constexpr (M::throws) {
      if (code == -ECANCELED) throw cancelled();
    }
#endif
    return detail::value_or_error<M>(code, [data]() -> T {
      struct guard {
        void* data;
        ~guard() { detail::root_base::drop(data); }
      } guard{data};
      return detail::rooted<T>::take(data);
    });
  }

  handle get_handle() const noexcept { return handle(upshift_runtime_handle(raw_)); }

 private:
  explicit runtime(upshift_runtime* raw) noexcept : raw_(raw) {}

  upshift_runtime* raw_ = nullptr;
};

/// Runs one task in a runtime with default settings.
template <class T>
T run(task<T> main) {
  runtime rt;
  return rt.block_on(std::move(main));
}

UPSHIFT_END
