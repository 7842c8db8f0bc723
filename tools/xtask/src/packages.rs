//! Finds out which of the Debian packages that the tests and benchmarks use are installed, and
//! installs the missing ones.

use std::path::Path;
use std::process::Command;

use crate::host;
use crate::install;
use crate::run::Stop;

/// A Debian package that the tests need, or that the benchmarks can use.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    purpose: &'static str,
    /// Whether `setup` installs the package; if not, `setup` only prints its name.
    pub(crate) setup_installs: bool,
    /// Whether `test` installs the package.
    pub(crate) test_installs: bool,
    is_installed: fn() -> bool,
}

impl Package {
    const fn new(name: &'static str, purpose: &'static str, is_installed: fn() -> bool) -> Package {
        Package {
            name,
            purpose,
            setup_installs: true,
            test_installs: true,
            is_installed,
        }
    }

    const fn for_benchmarks(self) -> Package {
        Package {
            test_installs: false,
            ..self
        }
    }

    const fn optional(self) -> Package {
        Package {
            setup_installs: false,
            ..self.for_benchmarks()
        }
    }

    pub(crate) fn is_installed(&self) -> bool {
        (self.is_installed)()
    }

    /// Returns a message such as "wrk is not installed (PURPOSE): `sudo apt-get install wrk`".
    pub(crate) fn absence(&self) -> String {
        format!(
            "{} is not installed ({}): `sudo apt-get install {0}`",
            self.name, self.purpose
        )
    }
}

/// Program that creates the minimal root file system in which our own Debian package is tested.
pub(crate) static DEBOOTSTRAP: Package = Package::new(
    "debootstrap",
    "creates the minimal root file system in which our own Debian package is tested",
    || host::has_program("debootstrap"),
);

/// Emulator that runs the kernel's tests.
pub(crate) static QEMU: Package = Package::new(
    "qemu-system-misc",
    "`qemu-system-riscv64`, the emulator that runs the kernel's tests",
    || host::has_program("qemu-system-riscv64"),
);

pub(crate) static VALGRIND: Package = Package::new(
    "valgrind",
    "callgrind, which counts the instructions of operations",
    || host::has_program("valgrind"),
);

static LIBURING: Package = Package::new(
    "liburing-dev",
    "library for the C program that the benchmarks compare with",
    || Path::new("/usr/include/liburing.h").exists(),
)
.for_benchmarks();

static WRK: Package = Package::new(
    "wrk",
    "load generator that sends requests to the web server in its tests",
    || host::has_program("wrk"),
);

static CURL: Package = Package::new(
    "curl",
    "client that sends requests to the web server in its tests",
    || host::has_program("curl"),
);

static AB: Package = Package::new(
    "apache2-utils",
    "`ab`, which sends requests to the web server in its tests",
    || host::has_program("ab"),
);

static NGHTTP2: Package = Package::new(
    "nghttp2-client",
    "`h2load` and `nghttp`, which send requests to the web server in its tests",
    || host::has_program("h2load"),
);

static NGINX: Package = Package::new(
    "nginx-light",
    "web server that the benchmarks compare with",
    || host::has_program("nginx") || Path::new("/usr/sbin/nginx").exists(),
)
.for_benchmarks();

// `setup` does not install HAProxy, because Debian starts it as a service.
static HAPROXY: Package = Package::new(
    "haproxy",
    "optional, the proxy in the section `serve` of the benchmarks",
    || host::has_program("haproxy") || Path::new("/usr/sbin/haproxy").exists(),
)
.optional();

pub(crate) static REDIS: Package = Package::new(
    "redis-server",
    "a server that the benchmarks run without changes to its code",
    || host::has_program("redis-server"),
)
.for_benchmarks();

pub(crate) static POSTGRESQL: Package = Package::new(
    "postgresql",
    "a server that the benchmarks run without changes to its code",
    || Path::new("/usr/lib/postgresql").exists(),
)
.for_benchmarks();

// `setup` does not install RabbitMQ, because the package brings Erlang and Debian starts the server
// as a service.
pub(crate) static RABBITMQ: Package = Package::new(
    "rabbitmq-server",
    "optional, the server of `cargo xtask compat programs lapin`",
    || Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server").exists(),
)
.optional();

// `setup` does not install Go, because the package is large and many machines have a newer Go from
// elsewhere.
pub(crate) static GO: Package = Package::new(
    "golang-go",
    "optional, builds the Go program that the benchmarks compare with, and compat/go",
    || host::has_program("go"),
)
.optional();

static OPENMPI: Package = Package::new(
    "openmpi-bin",
    "`mpirun`, which starts the ranks of mpi/",
    || host::has_program("mpirun"),
);

static LIBOPENMPI: Package =
    Package::new("libopenmpi-dev", "`mpi.h` and the library for mpi/", || {
        host::has_program("mpicc") && has_mpi_header()
    });

static LIBCLANG: Package = Package::new(
    "libclang-dev",
    "reads `mpi.h` when mpi/ is built",
    has_libclang,
);

pub(crate) static GXX: Package = Package::new(
    "g++",
    "compiler for the tests of our C++20 headers; needs g++ 12 or newer",
    || host::has_program("g++") || host::has_program("clang++"),
);

pub(crate) static CMAKE: Package = Package::new(
    "cmake",
    "build system that tests and installs our C++20 headers",
    || host::has_program("cmake"),
);

static LIBASIO: Package = Package::new(
    "libasio-dev",
    "library for the C++20 programs that the benchmarks compare with",
    || Path::new("/usr/include/asio.hpp").exists(),
)
.for_benchmarks();

/// Packages needed to build and start mpi/.
pub(crate) static MPI: [&Package; 3] = [&OPENMPI, &LIBOPENMPI, &LIBCLANG];

static ALL: [&Package; 20] = [
    &DEBOOTSTRAP,
    &QEMU,
    &VALGRIND,
    &LIBURING,
    &WRK,
    &CURL,
    &AB,
    &NGHTTP2,
    &NGINX,
    &HAPROXY,
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

/// Checks for the header, because the package that contains `mpicc` does not contain the header.
fn has_mpi_header() -> bool {
    let output = Command::new("mpicc").arg("--showme:incdirs").output();
    output.is_ok_and(|output| {
        let folders = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut folders = folders.split_whitespace();
        folders.any(|folder| Path::new(folder).join("mpi.h").exists())
    })
}

/// Looks only in Debian's folders, where the version is part of the folder or file name.
fn has_libclang() -> bool {
    let has = |folder: &Path| {
        std::fs::read_dir(folder).is_ok_and(|entries| {
            entries.flatten().any(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                // bindgen loads this library; `libclang-cpp.so` is a different library.
                name.starts_with("libclang.so")
                    || (name.starts_with("libclang-") && !name.starts_with("libclang-cpp"))
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

/// Returns the packages that this machine lacks.
pub(crate) fn missing() -> impl Iterator<Item = &'static Package> {
    ALL.into_iter().filter(|package| !package.is_installed())
}

/// Installs the packages that the tests need. Does nothing unless the user is root and `apt-get`
/// exists.
pub(crate) fn install_for_tests(stop: &Stop) {
    install_if(|package| package.test_installs, stop);
}

/// Installs these packages. Does nothing unless the user is root and `apt-get` exists.
pub(crate) fn install(packages: &[&Package], stop: &Stop) {
    let is_named = |package: &Package| packages.iter().any(|wanted| wanted.name == package.name);
    install_if(is_named, stop);
}

/// Installs all missing packages that match. Does nothing unless the user is root and `apt-get`
/// exists.
pub(crate) fn install_if(wanted: impl Fn(&Package) -> bool, stop: &Stop) {
    let names: Vec<_> = missing()
        .filter(|package| wanted(package))
        .map(|package| package.name)
        .collect();
    let can_install = rustix::process::geteuid().is_root() && host::has_program("apt-get");
    if names.is_empty() || !can_install {
        return;
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-q", "-o", "DPkg::Lock::Timeout=60"])
            .args(args);
        install::install(&mut command, stop)
    };
    let install_args = [
        &["install", "-y", "--no-install-recommends"],
        names.as_slice(),
    ]
    .concat();
    if !apt(&install_args) && apt(&["update"]) {
        apt(&install_args);
    }
}
