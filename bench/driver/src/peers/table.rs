//! Lists the peers, with the source and the arguments of each.

use crate::build::Source::{self, Bench, C, Cpp, Go, Installed, Root, Script};

/// A program of the benchmarks: its name in the tables, its source, its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) id: &'static str,
    pub(super) source: Source,
    pub(super) args: &'static [&'static str],
}

pub(crate) const UPSHIFT: &str = "upshift";
/// Upshift's C++ headers.
pub(crate) const UPSHIFT_CPP: &str = "upshift-cpp";
/// Upshift without io_uring, as in a container.
pub(crate) const READINESS: &str = "upshift-readiness";
/// The design of Kuro, the C++ framework of the published slides.
pub(crate) const KURO: &str = "kuro-design";
/// Peer with threads instead of coroutines.
pub(crate) const THREADS: &str = "threads";
pub(crate) const TOKIO: &str = "tokio-ct";
/// tokio's `multi_thread`.
pub(crate) const TOKIO_MT: &str = "tokio-mt";
/// smol, the successor of async-std.
pub(crate) const SMOL: &str = "smol";
/// Servers of the section `papers`.
pub(crate) const PAPERS: [&str; 9] = [
    UPSHIFT,
    READINESS,
    UPSHIFT_CPP,
    KURO,
    TOKIO,
    TOKIO_MT,
    SMOL,
    GO_HTTP,
    THREADS,
];
/// The lower bound: a program in C that uses io_uring without a runtime.
pub(crate) const RAW_C: &str = "c-uring";
/// Programs of the section `cpp`. `threads` and C over io_uring have no coroutines.
pub(crate) const CPP: [&str; 7] = [
    UPSHIFT,
    UPSHIFT_CPP,
    "asio",
    "asio-uring",
    "kuro-design",
    "threads",
    RAW_C,
];
/// Servers without a runtime, which are not candidates for the best peer.
pub(crate) const WITHOUT_RUNTIME: [&str; 4] = ["c-uring", "c-uring-direct", "c-epoll", "threads"];
/// Servers of the section `single`.
pub(crate) const SINGLE: [&str; 3] = [UPSHIFT, TOKIO, THREADS];
/// Servers that serve only pages.
pub(super) const WITHOUT_MATRIX: [&str; 5] = [
    "kuro-design",
    "go-http",
    "c-uring",
    "c-uring-direct",
    "c-epoll",
];
/// Server whose header lines may come in another order.
pub(crate) const GO_HTTP: &str = "go-http";

const fn peer(id: &'static str, source: Source, args: &'static [&'static str]) -> Peer {
    Peer { id, source, args }
}

const MT: &[&str] = &["--variant", "mt"];
const TUNED: &[&str] = &["--variant", "tuned"];
const ONE_VCPU: &[&str] = &["--vcpus", "1", "--pin", "0"];
/// Arguments for the driver without io_uring, as in a container.
const WITHOUT_URING: &[&str] = &["--vcpus", "1", "--pin", "0", "--driver", "readiness"];
/// Flags of Asio without epoll: sockets and timers by io_uring.
const ASIO_URING: &[&str] = &["-DASIO_HAS_IO_URING", "-DASIO_DISABLE_EPOLL", "-luring"];
/// Arguments of HAProxy, run in the folder `peers/haproxy`.
const SPLIT: &[&str] = &["-db", "-f", "split.cfg"];
pub(super) const CLI: Source = Root("upshift-cli");
const GO: Source = Go("peers/go", "peer-go");
const AXUM: Source = Bench("peer-axum");
const HAPROXY: Source = Installed("haproxy", "haproxy");
const URING: Source = C("uring", &["-luring"]);

/// Servers of pages and matrices, in the order of the first round. `plaintext` or `matrix` precedes
/// the arguments.
pub(crate) const SERVERS: &[Peer] = &[
    peer(UPSHIFT, CLI, ONE_VCPU),
    peer(READINESS, CLI, WITHOUT_URING),
    peer(UPSHIFT_CPP, Cpp("servers", UPSHIFT_CPP, &[]), ONE_VCPU),
    peer("asio", Cpp("asio", "asio", &[]), &[]),
    peer("asio-uring", Cpp("asio", "asio-uring", ASIO_URING), &[]),
    peer("kuro-design", Cpp("kuro", "kuro-design", &["-luring"]), &[]),
    peer("tokio-ct", Bench("peer-tokio"), &[]),
    peer("tokio-mt", Bench("peer-tokio"), MT),
    peer("monoio-tuned", Bench("peer-monoio"), TUNED),
    peer("monoio", Bench("peer-monoio"), &[]),
    peer("compio-tuned", Bench("peer-compio"), TUNED),
    peer("compio", Bench("peer-compio"), &[]),
    peer("glommio", Bench("peer-glommio"), &[]),
    peer("smol", Bench("peer-smol"), &[]),
    peer("may", Bench("peer-may"), &[]),
    peer("threads", Bench("peer-threads"), &[]),
    peer("go-net", GO, &[]),
    peer(GO_HTTP, GO, &["--variant", "http"]),
    peer(RAW_C, URING, &[]),
    peer("c-uring-direct", URING, &["--variant", "direct"]),
    peer("c-epoll", C("epoll", &[]), &[]),
];

/// Programs of the microbenchmarks.
pub(crate) const MICRO: &[Peer] = &[
    peer(UPSHIFT, Bench("micro-upshift"), &[]),
    peer("tokio-ct", Bench("micro-tokio"), &[]),
    peer("tokio-mt", Bench("micro-tokio"), MT),
    peer("monoio", Bench("micro-monoio"), &[]),
    peer("compio", Bench("micro-compio"), &[]),
    peer("glommio", Bench("micro-glommio"), &[]),
    peer("smol", Bench("micro-smol"), &[]),
    peer("may", Bench("micro-may"), &[]),
    peer("threads", Bench("micro-threads"), &[]),
    peer("go", Go("micro/go", "micro-go"), &[]),
];

/// Spin servers that are compared with Upshift's.
pub(crate) const SPIN: &[Peer] = &[
    peer("trick", Bench("peer-trick"), &["spin"]),
    peer("c", C("preempt", &["-luring"]), &["spin"]),
    peer("go", GO, &["spin"]),
];

/// Microbenchmarks that run on two workers.
pub(crate) const TWO_WORKERS: &[Peer] = &[
    peer(UPSHIFT, Bench("micro-upshift"), &[]),
    peer(
        "upshift-preempt",
        Bench("micro-upshift"),
        &["--variant", "preempt"],
    ),
    peer(
        "upshift-parked",
        Bench("micro-upshift"),
        &["--variant", "parked"],
    ),
    peer("tokio-mt", Bench("micro-tokio"), &[]),
    peer("go", Go("micro/go", "micro-go"), &[]),
    peer("smol", Bench("micro-smol"), &[]),
    peer("glommio", Bench("micro-glommio"), &[]),
    peer("threads", Bench("micro-threads"), &[]),
];
/// Members of [`TWO_WORKERS`] that the section `multi` leaves out, because this section does not
/// compare preemption, tasks of glommio never leave their thread, and threads are not tasks.
pub(crate) const CONSERVE_ONLY: [&str; 3] = ["upshift-preempt", "glommio", "threads"];

/// The program that measures how policies in user space schedule processes.
pub(crate) const SCHED: &[Peer] = &[peer("sched", Bench("bench-sched"), &[])];

/// axum on Upshift, without levels.
pub(crate) const AXUM_UPSHIFT: &str = "axum on upshift";
pub(crate) const AXUM_TOKIO: &str = "axum on tokio";
/// axum on tokio's multi_thread with one worker.
pub(crate) const AXUM_TOKIO_MT: &str = "axum on tokio-mt";
/// axum on Upshift, with a level for each request.
pub(crate) const AXUM_LEVELS: &str = "axum on upshift, levels";
/// HAProxy in front of two processes of axum on tokio, of which the second has nice 19.
pub(crate) const HAPROXY_NICE: &str = "HAProxy, 2 processes, nice 19";
/// HAProxy in front of two processes of axum on tokio, in cgroups of different weights.
pub(crate) const HAPROXY_WEIGHT: &str = "HAProxy, 2 processes, cgroup weights";
/// HAProxy with a queue by priority in front of one process of axum on tokio.
pub(crate) const HAPROXY_QUEUE: &str = "HAProxy, priority class";
/// Members of [`WEB`] that prefer urgent requests: Upshift with levels, and the means available to
/// users of tokio.
pub(crate) const ALTERNATIVES: [&str; 8] = [
    AXUM_LEVELS,
    "2 tokio runtimes, nice 19",
    "2 tokio runtimes, SCHED_IDLE",
    "spawn_blocking for the rest",
    "spawn_blocking for all",
    HAPROXY_NICE,
    HAPROXY_WEIGHT,
    HAPROXY_QUEUE,
];

/// Web servers that are compared with Upshift's.
pub(crate) const WEB: &[Peer] = &[
    peer(AXUM_UPSHIFT, AXUM, &["app", "--variant", "upshift"]),
    peer(AXUM_TOKIO, AXUM, &["app", "--variant", "tokio-ct"]),
    peer(AXUM_TOKIO_MT, AXUM, &["app", "--variant", "tokio-mt"]),
    peer("go-http", GO, &["app"]),
    peer("nginx", Script("nginx/serve", "nginx"), &[]),
    peer(ALTERNATIVES[0], AXUM, &["app", "--variant", "levels"]),
    peer(ALTERNATIVES[1], AXUM, &["app", "--variant", "two-nice"]),
    peer(ALTERNATIVES[2], AXUM, &["app", "--variant", "two-idle"]),
    peer(
        ALTERNATIVES[3],
        AXUM,
        &["app", "--variant", "blocking-rest"],
    ),
    peer(ALTERNATIVES[4], AXUM, &["app", "--variant", "blocking"]),
    peer(ALTERNATIVES[5], HAPROXY, SPLIT),
    peer(ALTERNATIVES[6], HAPROXY, SPLIT),
    peer(ALTERNATIVES[7], HAPROXY, &["-db", "-f", "queue.cfg"]),
];

/// Programs that read and write files.
pub(crate) const FILES: &[Peer] = &[
    peer(UPSHIFT, Bench("files-upshift"), &[]),
    peer(UPSHIFT_CPP, Cpp("files", "files-cpp", &[]), &[]),
    peer("pool", Bench("files-threads"), &["--variant", "pool"]),
    peer("threads", Bench("files-threads"), &[]),
    peer("tokio-fs", Bench("files-tokio"), &[]),
    peer("compio", Bench("files-compio"), &[]),
    peer("go", Go("files/go", "files-go"), &[]),
    peer(RAW_C, C("files", &["-luring"]), &[]),
];
