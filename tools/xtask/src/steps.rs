//! The steps of `cargo xtask test`, and the longer steps of `soak`: one entry and one function per
//! step, in the order in which they run.
//!
//! A step returns `Done::Skipped` if a requirement is missing, and an error if it fails. A command
//! that makes no progress is ended, so that a hang is a failure. Builds with other compiler flags
//! have their own target directories, because otherwise cargo would discard one build for the
//! other.

mod build;
mod checkers;
mod columns;
mod common;
mod soak;
mod tests;

use crate::compat;
use crate::cpp;
use crate::mpi;
use crate::os;
use crate::step::{Step, full, step};

pub(crate) static STEPS: [Step; 21] = [
    // These steps run as a whole beside other steps. The longest single-threaded step comes early.
    step(
        "fmt",
        "formatting, bench/, compat/, examples/, mpi/ and kernel/ too",
        build::fmt,
    )
    .concurrent("none"),
    full("miri", "core under Miri, strict provenance", checkers::miri).concurrent("miri"),
    step(
        "clippy",
        "lints, kernel/ too, warnings are errors",
        build::clippy,
    )
    .concurrent("debug"),
    step(
        "loom",
        "concurrency models, all interleavings",
        checkers::loom,
    )
    .concurrent("loom"),
    full(
        "deny",
        "licences, sources and advisories of dependencies",
        build::deny,
    )
    .concurrent("none"),
    full(
        "docs",
        "documentation and its links, no warnings",
        build::docs,
    )
    .concurrent("debug"),
    full(
        "no_std",
        "core builds without an operating system",
        build::no_std,
    )
    .concurrent("bare"),
    full("bench", "the benchmark driver compiles", build::bench).concurrent("bench"),
    // These steps have the machine to themselves, except for their builds.
    step("unit", "unit and integration tests", tests::unit).build_ahead("debug", tests::build),
    step("doc", "examples in the documentation", tests::doc_tests),
    full(
        "readiness",
        "ring and runtime where io_uring is forbidden, also without rights",
        tests::readiness,
    ),
    full(
        "asan",
        "ring and runtime under AddressSanitizer",
        checkers::asan,
    )
    .build_ahead("asan", checkers::build_asan),
    full("examples", "every example runs to its end", tests::examples)
        .build_ahead("debug", tests::build_examples),
    full(
        "package",
        "crates, cargo install, a Debian package and an image, each tried",
        build::package,
    ),
    full(
        "cpp",
        "C++20 over the C ABI: compilers, sanitizers, servers",
        cpp::step,
    ),
    full(
        "compat",
        "tokio's published tests, against the list of those that fail",
        compat::tokio_step,
    )
    .build_ahead("compat", compat::build_tokio),
    full(
        "programs",
        "crates that need a runtime of tokio, against postgres, redis and HTTP servers",
        compat::programs_step,
    )
    .build_ahead("programs", compat::build_programs),
    step("os", "the kernel in QEMU, at 1, 2 and 4 harts", tests::os).build_ahead("os", os::build),
    full(
        "mpi",
        "ranks on Open MPI: lints, tests with mpirun",
        mpi::step,
    )
    .build_ahead("mpi", mpi::build),
    full(
        "demo",
        "upshift demo --quick writes its report",
        tests::demo,
    )
    .build_ahead("release", tests::build_demo),
    full(
        "counts",
        "instructions of operations, against the table",
        build::counts,
    )
    .build_ahead("release", build::build_counts),
];

/// Steps of `cargo xtask soak`: long versions of the same tests.
pub(crate) static SOAKS: [Step; 7] = [
    step(
        "sim",
        "a million generated cases against the laws, and loads against the rule",
        soak::sim,
    ),
    step(
        "daemon",
        "a million messages, random pages, killed daemons, a CPU that is unplugged, a clock that is set",
        soak::daemon_soak,
    ),
    step(
        "fuzz",
        "frames, heads, priorities, rules and settings of the web server, a minute each",
        soak::fuzz,
    ),
    step("tsan", "preemption under ThreadSanitizer", checkers::tsan),
    step(
        "cpp",
        "C++ and Rust under ThreadSanitizer, 51,000 cancellations",
        cpp::soak,
    ),
    step(
        "torture",
        "everyday crates, a spinning allocator, a replaced handler and Go with preemption, a minute each",
        soak::torture,
    ),
    step(
        "crowded",
        "preemption beside programs that want the CPU, 20 times",
        soak::crowded,
    ),
];
