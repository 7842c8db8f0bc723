//! What is measured.
//!
//! Every peer is built on its own: one that fails is skipped and named, and the others are measured.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use crate::build::{self, Source};
use crate::options::Options;
use crate::section::Section;

/// One server of the benchmarks.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its name in the tables.
    pub(crate) id: &'static str,
    source: Source,
    plaintext: &'static [&'static str],
    matrix: Option<&'static [&'static str]>,
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
        source: Source::Cpp("upshift", "upshift-cpp", &[]),
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
    source: Source,
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
const SPIN: &[(&str, Source, &[&str])] = &[
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
const AXUM: &[(&str, Source, &[&str])] = &[
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
const TWO_WORKERS: &[(&str, Source, &[&str])] = &[
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
];
/// Of [`TWO_WORKERS`], not in `multi`: preemption is not what it compares, and tasks of glommio never leave their thread.
const NOT_MULTI: [&str; 2] = ["upshift-preempt", "glommio"];

/// What measures policies over processes.
const SCHED: Source = Source::Bench("bench-sched");

/// Web servers that Upshift's are compared with: name, source, arguments.
const SERVE: &[(&str, Source, &[&str])] = &[
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
const FILES: &[(&str, Source, &[&str])] = &[
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

/// A program that was built: its file and its first arguments.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The executable.
    pub(crate) file: PathBuf,
    /// Arguments that pick the server.
    pub(crate) args: Vec<String>,
    /// Variables of its environment.
    pub(crate) env: Vec<(String, String)>,
    /// The user and group that it runs as, without rights; those of the driver if `None`.
    pub(crate) user: Option<u32>,
}

impl Program {
    /// With these arguments, in the environment and with the rights of the driver.
    pub(crate) fn new(file: PathBuf, args: &[&str]) -> Program {
        Program {
            file,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
            user: None,
        }
    }
}

/// Upshift's server of plaintext or of matrices.
pub(crate) fn upshift_server(is_matrix: bool) -> (Source, &'static [&'static str]) {
    let Peer {
        source,
        plaintext,
        matrix,
        ..
    } = &PEERS[0];
    (
        *source,
        if is_matrix {
            matrix.unwrap_or(plaintext)
        } else {
            plaintext
        },
    )
}

/// Upshift's microbenchmarks.
pub(crate) fn upshift_micro() -> (Source, &'static [&'static str]) {
    (MICRO[0].source, MICRO[0].args)
}

/// What could be built, and why the rest could not.
#[derive(Default)]
pub(crate) struct Built {
    files: HashMap<Source, PathBuf>,
    wanted: Vec<String>,
    /// What was not built, and why.
    pub(crate) skipped: BTreeMap<&'static str, String>,
}

impl Built {
    /// The servers of plaintext (or matrix) that exist.
    pub(crate) fn servers(&self, matrix: bool) -> Vec<(&'static Peer, Program)> {
        PEERS
            .iter()
            .filter(|peer| self.is_wanted(peer.id))
            .filter_map(|peer| {
                let args = if matrix { peer.matrix? } else { peer.plaintext };
                Some((peer, self.program(peer.source, args)?))
            })
            .collect()
    }

    /// The microbenchmarks that exist.
    pub(crate) fn micro(&self) -> Vec<(&'static Micro, Program)> {
        MICRO
            .iter()
            .filter(|micro| self.is_wanted(micro.id))
            .filter_map(|micro| Some((micro, self.program(micro.source, micro.args)?)))
            .collect()
    }

    /// The programs of the section `conserve` that exist.
    pub(crate) fn conserve(&self) -> Vec<(&'static str, Program)> {
        TWO_WORKERS
            .iter()
            .filter(|(id, ..)| self.is_wanted(id))
            .filter_map(|&(id, source, args)| Some((id, self.program(source, args)?)))
            .collect()
    }

    /// The programs of the section `multi` that exist.
    pub(crate) fn multi(&self) -> Vec<(&'static str, Program)> {
        let mut programs = self.conserve();
        programs.retain(|(id, _)| !NOT_MULTI.contains(id));
        programs
    }

    /// The program that measures policies over processes.
    pub(crate) fn sched(&self) -> Option<Program> {
        self.program(SCHED, &[])
    }

    /// The programs of the section `files` that exist.
    pub(crate) fn files(&self) -> Vec<(&'static str, Program)> {
        FILES
            .iter()
            .filter(|(id, ..)| self.is_wanted(id))
            .filter_map(|&(id, source, args)| Some((id, self.program(source, args)?)))
            .collect()
    }

    /// The spin servers of others that exist.
    pub(crate) fn spin(&self) -> Vec<(String, Program)> {
        SPIN.iter()
            .filter(|(id, ..)| self.is_wanted(id))
            .filter_map(|&(id, source, args)| Some((id.to_owned(), self.program(source, args)?)))
            .collect()
    }

    /// The axum application with and without preemption, and on tokio, as far as it exists.
    pub(crate) fn axum(&self) -> Vec<(String, Program)> {
        AXUM.iter()
            .filter_map(|&(id, source, args)| Some((id.to_owned(), self.program(source, args)?)))
            .collect()
    }

    /// The web servers of others, and axum on our runtime, that exist.
    pub(crate) fn web(&self) -> Vec<(String, Program)> {
        SERVE
            .iter()
            .filter_map(|&(id, source, args)| Some((id.to_owned(), self.program(source, args)?)))
            .collect()
    }

    /// The command `upshift`, to be given arguments of the caller's.
    pub(crate) fn upshift(&self, args: &[&str]) -> Option<Program> {
        self.program(PEERS[0].source, args)
    }

    fn is_wanted(&self, id: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|w| w == id)
    }

    fn program(&self, source: Source, args: &[&str]) -> Option<Program> {
        Some(Program::new(self.files.get(&source)?.clone(), args))
    }
}

/// Builds everything that the options ask for.
pub(crate) fn build(options: &Options) -> Built {
    let mut built = Built {
        wanted: options.peers.clone(),
        ..Built::default()
    };
    let servers = options.only.iter().any(|s| s.needs_peers());
    let levels = options.only.iter().any(|s| s.needs_upshift());
    let mut sources: Vec<(&'static str, Source)> = Vec::new();
    if servers {
        let wanted = |p: &&Peer| built.is_wanted(p.id) || (levels && p.id == UPSHIFT);
        sources.extend(PEERS.iter().filter(wanted).map(|p| (p.id, p.source)));
    }
    if options.only.contains(&Section::Cpp) && !servers {
        let wanted = |p: &&Peer| CPP.contains(&p.id) && built.is_wanted(p.id);
        sources.extend(PEERS.iter().filter(wanted).map(|p| (p.id, p.source)));
    }
    if levels && !servers {
        sources.push((UPSHIFT, PEERS[0].source));
    }
    if options.only.contains(&Section::Preemption) {
        let wanted = SPIN.iter().filter(|(id, ..)| built.is_wanted(id));
        sources.extend(wanted.map(|&(id, source, _)| (id, source)));
        sources.extend(AXUM.iter().map(|&(id, source, _)| (id, source)));
    }
    if options.only.contains(&Section::Sched) {
        sources.push(("sched", SCHED));
    }
    if options.only.contains(&Section::Serve) {
        sources.extend(SERVE.iter().map(|&(id, source, _)| (id, source)));
    }
    if options.only.contains(&Section::Files) {
        let wanted = FILES.iter().filter(|(id, ..)| built.is_wanted(id));
        sources.extend(wanted.map(|&(id, source, _)| (id, source)));
    }
    if options.only.contains(&Section::Micro) {
        let wanted = MICRO.iter().filter(|m| built.is_wanted(m.id));
        sources.extend(wanted.map(|m| (m.id, m.source)));
    }
    let two = [Section::Conserve, Section::Multi];
    if two.iter().any(|section| options.only.contains(section)) {
        let wanted = TWO_WORKERS.iter().filter(|(id, ..)| built.is_wanted(id));
        sources.extend(wanted.map(|&(id, source, _)| (id, source)));
    }
    let mut tried: HashMap<Source, Result<PathBuf, String>> = HashMap::new();
    for (id, source) in sources {
        let outcome = tried.entry(source).or_insert_with(|| {
            eprintln!("building {id}");
            build::build(source).inspect_err(|why| eprintln!("  not built: {why}"))
        });
        match outcome {
            Ok(file) => {
                built.files.insert(source, file.clone());
            }
            Err(why) => {
                built.skipped.insert(id, why.clone());
            }
        }
    }
    built
}
