//! Debian packages that tests and benchmarks use: how to see that one is there, and how to get it.

use std::path::Path;
use std::process::Command;

use crate::host;
use crate::run::Stop;
use crate::setup;

/// A Debian package that tests need, or the benchmarks can use.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    purpose: &'static str,
    /// Whether `setup` installs it; otherwise it is only named.
    pub(crate) install: bool,
    /// Whether `test` does.
    pub(crate) tests: bool,
    is_there: fn() -> bool,
}

impl Package {
    pub(crate) fn is_there(&self) -> bool {
        (self.is_there)()
    }

    /// "wrk is not installed (what it is for): type …"
    pub(crate) fn absence(&self) -> String {
        format!(
            "{} is not installed ({}): `sudo apt-get install {0}`",
            self.name, self.purpose
        )
    }
}

/// The emulator of the kernel's tests.
pub(crate) static QEMU: Package = Package {
    name: "qemu-system-misc",
    purpose: "the kernel's tests, `qemu-system-riscv64`",
    install: true,
    tests: true,
    is_there: || host::has_program("qemu-system-riscv64"),
};

/// What counts instructions.
pub(crate) static VALGRIND: Package = Package {
    name: "valgrind",
    purpose: "callgrind, which counts the instructions of operations",
    install: true,
    tests: true,
    is_there: || host::has_program("valgrind"),
};

static LIBURING: Package = Package {
    name: "liburing-dev",
    purpose: "the benchmarks' peer in C",
    install: true,
    tests: false,
    is_there: || Path::new("/usr/include/liburing.h").exists(),
};

static WRK: Package = Package {
    name: "wrk",
    purpose: "load generator that asks the web server, in its tests",
    install: true,
    tests: true,
    is_there: || host::has_program("wrk"),
};

static CURL: Package = Package {
    name: "curl",
    purpose: "client that asks the web server, in its tests",
    install: true,
    tests: true,
    is_there: || host::has_program("curl"),
};

static AB: Package = Package {
    name: "apache2-utils",
    purpose: "`ab`, which asks the web server, in its tests",
    install: true,
    tests: true,
    is_there: || host::has_program("ab"),
};

static NGHTTP2: Package = Package {
    name: "nghttp2-client",
    purpose: "`h2load` and `nghttp`, which ask the web server, in its tests",
    install: true,
    tests: true,
    is_there: || host::has_program("h2load"),
};

static NGINX: Package = Package {
    name: "nginx-light",
    purpose: "the benchmarks' web server to compare with",
    install: true,
    tests: false,
    is_there: || host::has_program("nginx") || Path::new("/usr/sbin/nginx").exists(),
};

static REDIS: Package = Package {
    name: "redis-server",
    purpose: "one of the unmodified servers of the benchmarks",
    install: true,
    tests: false,
    is_there: || host::has_program("redis-server"),
};

static POSTGRESQL: Package = Package {
    name: "postgresql",
    purpose: "one of the unmodified servers of the benchmarks",
    install: true,
    tests: false,
    is_there: || Path::new("/usr/lib/postgresql").exists(),
};

/// A server of queues.
pub(crate) static RABBITMQ: Package = Package {
    name: "rabbitmq-server",
    // It brings Erlang, and Debian starts it as a service.
    purpose: "optional, the server of `cargo xtask compat programs lapin`",
    install: false,
    tests: false,
    is_there: || Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server").exists(),
};

static GO: Package = Package {
    name: "golang-go",
    // Some 300 MB, and many machines have a newer Go from elsewhere.
    purpose: "optional, the benchmarks' peer in Go",
    install: false,
    tests: false,
    is_there: || host::has_program("go"),
};

static OPENMPI: Package = Package {
    name: "openmpi-bin",
    purpose: "`mpirun`, which starts the ranks of mpi/",
    install: true,
    tests: true,
    is_there: || host::has_program("mpirun"),
};

static LIBOPENMPI: Package = Package {
    name: "libopenmpi-dev",
    purpose: "`mpi.h` and the library for mpi/",
    install: true,
    tests: true,
    is_there: || host::has_program("mpicc") && has_mpi_header(),
};

static LIBCLANG: Package = Package {
    name: "libclang-dev",
    purpose: "reads `mpi.h` when mpi/ is built",
    install: true,
    tests: true,
    is_there: has_libclang,
};

/// A compiler of C++20.
pub(crate) static GXX: Package = Package {
    name: "g++",
    purpose: "the tests of the headers of C++20, version 12 or newer",
    install: true,
    tests: true,
    is_there: || host::has_program("g++") || host::has_program("clang++"),
};

/// What the headers of C++20 are tested and installed with.
pub(crate) static CMAKE: Package = Package {
    name: "cmake",
    purpose: "the tests of the headers of C++20",
    install: true,
    tests: true,
    is_there: || host::has_program("cmake"),
};

static LIBASIO: Package = Package {
    name: "libasio-dev",
    purpose: "the benchmarks' peers of C++20",
    install: true,
    tests: false,
    is_there: || Path::new("/usr/include/asio.hpp").exists(),
};

/// What mpi/ is built with and started by.
pub(crate) static MPI: [&Package; 3] = [&OPENMPI, &LIBOPENMPI, &LIBCLANG];

static ALL: [&Package; 18] = [
    &QEMU,
    &VALGRIND,
    &LIBURING,
    &WRK,
    &CURL,
    &AB,
    &NGHTTP2,
    &NGINX,
    &REDIS,
    &POSTGRESQL,
    &RABBITMQ,
    &GO,
    &OPENMPI,
    &LIBOPENMPI,
    &LIBCLANG,
    &GXX,
    &CMAKE,
    &LIBASIO,
];

/// `mpicc` alone comes with a package that has no header.
fn has_mpi_header() -> bool {
    let output = Command::new("mpicc").arg("--showme:incdirs").output();
    output.is_ok_and(|output| {
        let folders = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut folders = folders.split_whitespace();
        folders.any(|folder| Path::new(folder).join("mpi.h").exists())
    })
}

/// Where Debian puts it, with a version in the name of the folder or of the file.
fn has_libclang() -> bool {
    let has = |folder: &Path| {
        std::fs::read_dir(folder).is_ok_and(|entries| {
            entries.flatten().any(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                name.starts_with("libclang.so") || name.starts_with("libclang-")
            })
        })
    };
    let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    has(Path::new(&machine))
        || std::fs::read_dir("/usr/lib").is_ok_and(|entries| {
            let mut folders = entries.flatten().map(|entry| entry.path());
            folders.any(|path| path.to_string_lossy().contains("/llvm-") && has(&path.join("lib")))
        })
}

/// What this machine lacks.
pub(crate) fn missing() -> impl Iterator<Item = &'static Package> {
    ALL.into_iter().filter(|package| !package.is_there())
}

/// Installs what the tests need, as far as this user may.
pub(crate) fn install_for_tests(stop: &Stop) {
    install_if(|package| package.tests, stop);
}

/// Installs these, as far as this user may.
pub(crate) fn install(packages: &[&Package], stop: &Stop) {
    let among = |package: &Package| packages.iter().any(|wanted| wanted.name == package.name);
    install_if(among, stop);
}

/// Installs all that fit, as far as this user may.
pub(crate) fn install_if(wanted: impl Fn(&Package) -> bool, stop: &Stop) {
    let names: Vec<_> = missing()
        .filter(|package| wanted(package))
        .map(|package| package.name)
        .collect();
    let may = rustix::process::geteuid().is_root() && host::has_program("apt-get");
    if names.is_empty() || !may {
        return;
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-q", "-o", "DPkg::Lock::Timeout=60"])
            .args(args);
        setup::install(&mut command, stop)
    };
    let get = [
        &["install", "-y", "--no-install-recommends"],
        names.as_slice(),
    ]
    .concat();
    if !apt(&get) && apt(&["update"]) {
        apt(&get);
    }
}
