// The part of the test no_exceptions.cpp that is compiled with exceptions.
#include <upshift/upshift.hpp>

static_assert(UPSHIFT_EXCEPTIONS == 1);

int with_exceptions() {
  try {
    upshift::run([]() -> upshift::task<> { (void)co_await upshift::file::open("/nonexistent"); }());
  } catch (const std::system_error&) {
    return 1;
  }
  return 0;
}
