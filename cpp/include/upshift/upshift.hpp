// All headers of Upshift for C++20.
#pragma once

#include "buffer.hpp"
#include "error.hpp"
#include "file.hpp"
#include "net.hpp"
#include "runtime.hpp"
#include "several.hpp"
#include "spawn.hpp"
#include "sync.hpp"
#include "task.hpp"
#include "time.hpp"
