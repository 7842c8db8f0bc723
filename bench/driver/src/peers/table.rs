//! Which peers there are: what each is built from, and its arguments.

use crate::build::Source;

/// One server of the benchmarks.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its name in the tables.
    pub(crate) id: &'static str,
    pub(super) source: Source,
    pub(super) plaintext: &'static [&'static str],
    pub(super) matrix: Option<&'static [&'static str]>,
    /// The same header lines in another order are taken for the same reply.
    pub(crate) header_order_free: bool,
}

/// Ours in the tables.
pub(crate) const UPSHIFT: &str = "upshift";
/// The floor: C over io_uring without a runtime.
pub(crate) const RAW_C: &str = "c-uring";
/// Ours in C++.
pub(crate) const UPSHIFT_CPP: &str = "upshift-cpp";
/// What the section of C++ measures. `threads` and C over io_uring have no coroutines.
pub(crate) const CPP: [&str; 7] = [
    UPSHIFT,
    UPSHIFT_CPP,
    "asio",
    "asio-uring",
    "kuro-design",
    "threads",
    RAW_C,
];
/// Servers that have no runtime: they are not among "the peers" when the best of them is sought.
pub(crate) const NO_RUNTIME: [&str; 4] = ["c-uring", "c-uring-direct", "c-epoll", "threads"];

const fn bench(
    id: &'static str,
    package: &'static str,
    args: [&'static [&'static str]; 2],
) -> Peer {
    Peer {
        id,
        source: Source::Bench(package),
        plaintext: args[0],
        matrix: Some(args[1]),
        header_order_free: false,
    }
}

const fn both(variant: &'static str) -> [&'static [&'static str]; 2] {
    // A `const fn` cannot build a slice of a parameter: the flavours are few.
    match variant.as_bytes() {
        b"mt" => [
            &["plaintext", "--variant", "mt"],
            &["matrix", "--variant", "mt"],
        ],
        b"tuned" => [
            &["plaintext", "--variant", "tuned"],
            &["matrix", "--variant", "tuned"],
        ],
        _ => [&["plaintext"], &["matrix"]],
    }
}

const fn c(id: &'static str, file: &'static str, libs: &'static [&'static str]) -> Peer {
    Peer {
        id,
        source: Source::C(file, libs),
        plaintext: if let b"c-uring-direct" = id.as_bytes() {
            &["plaintext", "--variant", "direct"]
        } else {
            &["plaintext"]
        },
        matrix: None,
        header_order_free: false,
    }
}

const fn cpp(
    id: &'static str,
    file: &'static str,
    args: &'static [&'static str],
    matrix: bool,
) -> Peer {
    Peer {
        id,
        source: Source::Cpp(file, id, args),
        plaintext: &["plaintext"],
        matrix: if matrix { Some(&["matrix"]) } else { None },
        header_order_free: false,
    }
}

/// Asio without epoll: sockets and timers by io_uring.
const ASIO_URING: &[&str] = &["-DASIO_HAS_IO_URING", "-DASIO_DISABLE_EPOLL", "-luring"];

/// All of them, in the order of the first round.
pub(crate) const PEERS: &[Peer] = &[
    Peer {
        id: UPSHIFT,
        source: Source::Root("upshift-cli"),
        plaintext: &["plaintext-server", "--vcpus", "1", "--pin", "0"],
        matrix: Some(&["matrix-server", "--vcpus", "1", "--pin", "0"]),
        header_order_free: false,
    },
    // The same program without io_uring, as in a container.
    Peer {
        id: "upshift-readiness",
        source: Source::Root("upshift-cli"),
        plaintext: &[
            "plaintext-server",
            "--vcpus",
            "1",
            "--pin",
            "0",
            "--driver",
            "readiness",
        ],
        matrix: Some(&[
            "matrix-server",
            "--vcpus",
            "1",
            "--pin",
            "0",
            "--driver",
            "readiness",
        ]),
        header_order_free: false,
    },
    Peer {
        id: "upshift-cpp",
        source: Source::Cpp("servers", "upshift-cpp", &[]),
        plaintext: &["plaintext", "--vcpus", "1", "--pin", "0"],
        matrix: Some(&["matrix", "--vcpus", "1", "--pin", "0"]),
        header_order_free: false,
    },
    cpp("asio", "asio", &[], true),
    cpp("asio-uring", "asio", ASIO_URING, true),
    cpp("kuro-design", "kuro", &["-luring"], false),
    bench("tokio-ct", "peer-tokio", both("ct")),
    bench("tokio-mt", "peer-tokio", both("mt")),
    bench("monoio-tuned", "peer-monoio", both("tuned")),
    bench("monoio", "peer-monoio", both("default")),
    bench("compio-tuned", "peer-compio", both("tuned")),
    bench("compio", "peer-compio", both("default")),
    bench("glommio", "peer-glommio", both("default")),
    bench("smol", "peer-smol", both("default")),
    bench("may", "peer-may", both("default")),
    bench("threads", "peer-threads", both("default")),
    Peer {
        id: "go-net",
        source: Source::Go("peers/go", "peer-go"),
        plaintext: &["plaintext"],
        matrix: Some(&["matrix"]),
        header_order_free: false,
    },
    Peer {
        id: "go-http",
        source: Source::Go("peers/go", "peer-go"),
        plaintext: &["plaintext", "--variant", "http"],
        matrix: None,
        header_order_free: true,
    },
    c("c-uring", "uring", &["-luring"]),
    c("c-uring-direct", "uring", &["-luring"]),
    c("c-epoll", "epoll", &[]),
];

/// A microbenchmark program: the name in the tables, its source, its arguments before `one-thread` or `two-threads`.
pub(crate) struct Micro {
    /// Its name in the tables.
    pub(crate) id: &'static str,
    pub(super) source: Source,
    /// Arguments that pick the flavour of the runtime.
    pub(crate) args: &'static [&'static str],
}

const fn micro(id: &'static str, package: &'static str) -> Micro {
    Micro {
        id,
        source: Source::Bench(package),
        args: &[],
    }
}

/// The microbenchmarks. That of upshift is measured once its package exists.
pub(crate) const MICRO: &[Micro] = &[
    micro(UPSHIFT, "micro-upshift"),
    micro("tokio-ct", "micro-tokio"),
    Micro {
        id: "tokio-mt",
        source: Source::Bench("micro-tokio"),
        args: &["--variant", "mt"],
    },
    micro("monoio", "micro-monoio"),
    micro("compio", "micro-compio"),
    micro("glommio", "micro-glommio"),
    micro("smol", "micro-smol"),
    micro("may", "micro-may"),
    micro("threads", "micro-threads"),
    Micro {
        id: "go",
        source: Source::Go("micro/go", "micro-go"),
        args: &[],
    },
];

/// Spin servers that Upshift's is compared with: name, source, arguments.
pub(super) const SPIN: &[(&str, Source, &[&str])] = &[
    ("trick", Source::Bench("peer-trick"), &["spin"]),
    ("go", Source::Go("peers/go", "peer-go"), &["spin"]),
    ("tokio-ct", Source::Bench("peer-tokio"), &["spin"]),
    (
        "tokio-mt2",
        Source::Bench("peer-tokio"),
        &["spin", "--variant", "mt2"],
    ),
];

/// One axum application: name, source, arguments.
pub(super) const AXUM: &[(&str, Source, &[&str])] = &[
    (
        "axum off",
        Source::Bench("peer-axum"),
        &["app", "--variant", "upshift"],
    ),
    (
        "axum on",
        Source::Bench("peer-axum"),
        &["app", "--variant", "upshift-preempt"],
    ),
    (
        "axum on tokio",
        Source::Bench("peer-axum"),
        &["app", "--variant", "tokio-ct"],
    ),
];

/// What is measured on two workers: name, source, arguments after the section.
pub(super) const TWO_WORKERS: &[(&str, Source, &[&str])] = &[
    (UPSHIFT, Source::Bench("micro-upshift"), &[]),
    (
        "upshift-preempt",
        Source::Bench("micro-upshift"),
        &["--variant", "preempt"],
    ),
    ("tokio-mt", Source::Bench("micro-tokio"), &[]),
    ("go", Source::Go("micro/go", "micro-go"), &[]),
    ("smol", Source::Bench("micro-smol"), &[]),
    ("glommio", Source::Bench("micro-glommio"), &[]),
    ("threads", Source::Bench("micro-threads"), &[]),
];
/// Of [`TWO_WORKERS`], not in `multi`: preemption is not what it compares, tasks of glommio never leave their thread, and threads are not
/// tasks.
pub(super) const NOT_MULTI: [&str; 3] = ["upshift-preempt", "glommio", "threads"];

/// What measures policies over processes.
pub(super) const SCHED: Source = Source::Bench("bench-sched");

/// Web servers that Upshift's are compared with: name, source, arguments.
pub(super) const SERVE: &[(&str, Source, &[&str])] = &[
    (
        "axum on upshift",
        Source::Bench("peer-axum"),
        &["app", "--variant", "upshift"],
    ),
    (
        "axum on tokio",
        Source::Bench("peer-axum"),
        &["app", "--variant", "tokio-ct"],
    ),
    (
        "axum on tokio-mt",
        Source::Bench("peer-axum"),
        &["app", "--variant", "tokio-mt"],
    ),
    ("go-http", Source::Go("peers/go", "peer-go"), &["app"]),
    ("nginx", Source::Script("nginx/serve", "nginx"), &[]),
];

/// What is measured on files: name, source, further arguments.
pub(super) const FILES: &[(&str, Source, &[&str])] = &[
    (UPSHIFT, Source::Bench("files-upshift"), &[]),
    ("upshift-cpp", Source::Cpp("files", "files-cpp", &[]), &[]),
    (
        "pool",
        Source::Bench("files-threads"),
        &["--variant", "pool"],
    ),
    ("threads", Source::Bench("files-threads"), &[]),
    ("tokio-fs", Source::Bench("files-tokio"), &[]),
    ("compio", Source::Bench("files-compio"), &[]),
    ("go", Source::Go("files/go", "files-go"), &[]),
    (RAW_C, Source::C("files", &["-luring"]), &[]),
];
