// The plaintext and matrix servers of cpp/examples, as one program for the driver.
#include <upshift/upshift.hpp>

#include "server.hpp"

#define main serve_main
namespace plaintext {
#include "plaintext_server.cpp"
}
namespace matrix {
#include "matrix_server.cpp"
}
#undef main

int main(int argc, char** argv) {
  const auto work = server::parse(argc, argv).work;
  return work == "matrix" ? matrix::serve_main(argc, argv) : plaintext::serve_main(argc, argv);
}
