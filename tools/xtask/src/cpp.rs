//! `cargo xtask cpp`, and the step `cpp` of the suite: build and test the C library, the C++20
//! headers and their programs.
//!
//! The command builds with --release, tests with each compiler that is found and with its
//! sanitizers, installs into a prefix, and builds a program against the installation with CMake and
//! with pkg-config. The step does the same with the debug libraries, in two builds rather than
//! four: with the first compiler without sanitizers, and with the last one with them.
//!
//! ThreadSanitizer must see both sides of each hand-over, so nightly builds the Rust library,
//! including `std`, with the sanitizer. Only clang++ can link the result, because the runtime of
//! g++ 12 lacks functions that rustc calls. The command runs this build where both tools are
//! present. The soak always runs it, with more cancellations.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::bench::foreground;
use crate::host;
use crate::packages;
use crate::run::Stop;
use crate::setup::{self, Tool, Tools};
use crate::step::{Context, Done, Verdict};

/// Candidate C++20 compilers; the first that is found of each kind is used.
const COMPILERS: [&[&str]; 2] = [
    &["g++"],
    // A clang++ without a number may be older than 16.
    &[
        "clang++-22",
        "clang++-21",
        "clang++-20",
        "clang++-19",
        "clang++-18",
        "clang++-17",
        "clang++-16",
        "clang++",
    ],
];

/// Settings of one build of the tests.
struct Flavour {
    name: String,
    compiler: &'static str,
    sanitizers: &'static str,
    build_type: &'static str,
}

/// Tests that run in every flavour.
const TESTS: [&str; 13] = [
    "test_coroutines",
    "test_closures",
    "test_frames",
    "test_outside",
    "test_several",
    "test_preemption",
    "test_io",
    "test_misuse",
    "test_null",
    "test_unhandled",
    "test_no_exceptions",
    "test_shared",
    "mixed",
];

fn compilers() -> impl Iterator<Item = &'static str> {
    let first_installed =
        |names: &&[&'static str]| names.iter().copied().find(|name| host::has_program(name));
    COMPILERS.iter().filter_map(first_installed)
}

fn flavours() -> Vec<Flavour> {
    let mut list = Vec::new();
    for compiler in compilers() {
        for (sanitizers, build_type) in [("", "Release"), ("address,undefined", "Debug")] {
            let kind = if sanitizers.is_empty() {
                "plain"
            } else {
                "asan"
            };
            list.push(Flavour {
                name: format!("{compiler}-{kind}"),
                compiler,
                sanitizers,
                build_type,
            });
        }
    }
    list
}

/// Returns the compiler whose ThreadSanitizer provides the functions that rustc calls.
fn tsan_compiler() -> Result<&'static str, String> {
    let clang = compilers().find(|name| name.starts_with("clang"));
    clang.ok_or_else(|| "no clang++ 16 or later".to_owned())
}

type Run<'a> = &'a dyn Fn(Command) -> Result<(), String>;

struct Build<'a> {
    root: &'a Path,
    target: PathBuf,
    /// Folder into which cargo puts the libraries.
    libraries: PathBuf,
    /// The command `upshift`, whose servers are compared with those of the examples.
    command: PathBuf,
    run: Run<'a>,
}

impl<'a> Build<'a> {
    /// Creates a build with the libraries of a profile that cargo puts into `folder`.
    fn new(root: &'a Path, target: &Path, folder: &str, run: Run<'a>) -> Build<'a> {
        Build {
            root,
            target: target.to_path_buf(),
            libraries: target.join(folder),
            command: target.join(folder).join("upshift"),
            run,
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.target.join("cpp").join(name)
    }

    /// Builds the command, and the libraries as they are shipped.
    fn release(&self) -> Result<(), String> {
        let mut command = setup::cargo(self.root);
        command.args(["build", "--release"]);
        let packages = ["upshift-c-library", "upshift-mixed", "upshift-cli"];
        command.args(packages.iter().flat_map(|name| ["-p", name]));
        (self.run)(command)
    }

    /// Builds the debug libraries, as the suite uses them.
    fn debug(&self) -> Result<(), String> {
        (self.run)(setup::debug_build(self.root))
    }

    /// Returns the same build with libraries instrumented for ThreadSanitizer.
    fn sanitized(&self) -> Result<Build<'_>, String> {
        let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let target = self.target.join("tsan");
        let mut command = setup::cargo(self.root);
        command
            .args(["+nightly", "build", "-Zbuild-std", "--target", &machine])
            .args(["-p", "upshift-c-library", "-p", "upshift-mixed"])
            .env("RUSTFLAGS", "-Zsanitizer=thread --cfg sanitized")
            .env("CARGO_TARGET_DIR", &target);
        (self.run)(command)?;
        Ok(Build {
            root: self.root,
            target: self.target.clone(),
            libraries: target.join(machine).join("debug"),
            command: self.command.clone(),
            run: self.run,
        })
    }

    /// Runs everything under ThreadSanitizer, and the test of a thousand random cancellations
    /// `extra_runs` more times.
    fn test_under_tsan(&self, extra_runs: usize) -> Result<(), String> {
        let compiler = tsan_compiler()?;
        let flavour = Flavour {
            name: format!("{compiler}-tsan"),
            compiler,
            sanitizers: "thread",
            build_type: "RelWithDebInfo",
        };
        let build = self.sanitized()?;
        build.configure(&flavour, None)?;
        let folder = build.folder(&flavour.name);
        build.build(&folder)?;
        build.test(&flavour)?;
        for _ in 0..extra_runs {
            let mut command = Command::new(folder.join("test_io"));
            command.arg("a_thousand_random_cancellations");
            (self.run)(command)?;
        }
        Ok(())
    }

    fn configure(&self, flavour: &Flavour, prefix: Option<&Path>) -> Result<(), String> {
        let mut command = Command::new("cmake");
        command.arg("-S").arg(self.root.join("cpp"));
        command.arg("-B").arg(self.folder(&flavour.name));
        command.args(host::has_program("ninja").then_some("-GNinja"));
        command
            .arg(format!("-DCMAKE_CXX_COMPILER={}", flavour.compiler))
            .arg(format!("-DCMAKE_BUILD_TYPE={}", flavour.build_type))
            .arg(format!("-DUPSHIFT_SANITIZE={}", flavour.sanitizers))
            .arg(format!("-DUPSHIFT_LIBRARIES={}", self.libraries.display()));
        if let Some(prefix) = prefix {
            command.arg(format!("-DCMAKE_INSTALL_PREFIX={}", prefix.display()));
        }
        // About thirty programs link a large library; Rust's linker is faster.
        if let Some(linker) = setup::rust_linker() {
            let flags = format!("-B{} -fuse-ld=lld", linker.display());
            command.arg(format!("-DCMAKE_EXE_LINKER_FLAGS={flags}"));
        }
        (self.run)(command)
    }

    fn build(&self, folder: &Path) -> Result<(), String> {
        let mut command = Command::new("cmake");
        command.arg("--build").arg(folder).args(["-j", "2"]);
        (self.run)(command)
    }

    fn test(&self, flavour: &Flavour) -> Result<(), String> {
        let folder = self.folder(&flavour.name);
        for test in TESTS {
            (self.run)(Command::new(folder.join(test)))?;
        }
        // Tests the readiness driver, which machines without io_uring use.
        for test in ["test_io", "test_several"] {
            let mut command = Command::new(folder.join(test));
            command.env("UPSHIFT_DRIVER", "readiness");
            (self.run)(command)?;
        }
        // This test starts the example programs themselves, which have their own sanitizers.
        let mut servers = Command::new(folder.join("test_servers"));
        servers.arg(&folder).arg(&self.command);
        (self.run)(servers)?;
        (self.run)(Command::new(folder.join("priorities")))
    }

    /// Installs one flavour, and builds a program against the installation.
    fn install(&self, flavour: &Flavour, prefix: &Path) -> Result<(), String> {
        let mut command = Command::new("cmake");
        command.arg("--install").arg(self.folder(&flavour.name));
        (self.run)(command)?;
        let source = self.root.join("cpp/tests/consumer");
        let folder = self.folder("consumer");
        // CMake caches the location of the package, which may be that of another prefix.
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", folder.display()));
            }
            _ => {}
        }
        let mut command = Command::new("cmake");
        command.arg("-S").arg(&source).arg("-B").arg(&folder);
        command
            .arg(format!("-DCMAKE_CXX_COMPILER={}", flavour.compiler))
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        (self.run)(command)?;
        self.build(&folder)?;
        for program in ["consumer_static", "consumer_shared", "consumer_c"] {
            (self.run)(Command::new(folder.join(program)))?;
        }
        if !host::has_program("pkg-config") {
            return Ok(());
        }
        for script in [
            "\"$CXX\" -std=c++20 main.cpp -o \"$OUT\" $(pkg-config --cflags --libs upshift) -Wl,-rpath,\"$(pkg-config --variable=libdir upshift)\" && \"$OUT\"",
            "\"$CXX\" -std=c++20 main.cpp -o \"$OUT\" $(pkg-config --cflags upshift) \"$(pkg-config --variable=libdir upshift)/libupshift_c.a\" && \"$OUT\"",
            "cc -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE errors.c -o \"$OUT\" $(pkg-config --cflags --libs upshift) -Wl,-rpath,\"$(pkg-config --variable=libdir upshift)\" && \"$OUT\"",
        ] {
            let mut command = Command::new("sh");
            command.arg("-c").arg(script);
            command
                .current_dir(&source)
                .env("CXX", flavour.compiler)
                .env("OUT", folder.join("by_pkg_config"))
                .env("PKG_CONFIG_PATH", pkg_config_path(prefix));
            (self.run)(command)?;
        }
        Ok(())
    }

    fn all(&self, flavours: &[Flavour], prefix: &Path) -> Result<(), String> {
        for (index, flavour) in flavours.iter().enumerate() {
            self.configure(flavour, (index == 0).then_some(prefix))?;
            self.build(&self.folder(&flavour.name))?;
            self.test(flavour)?;
        }
        match flavours.first() {
            Some(first) => self.install(first, prefix),
            None => Err("no C++20 compiler".to_owned()),
        }
    }
}

/// Returns the folders that may hold the pkg-config file. The name of Debian's library folder
/// contains the machine's name; the names of other systems' folders do not.
fn pkg_config_path(prefix: &Path) -> String {
    let arch = format!("lib/{}-linux-gnu/pkgconfig", std::env::consts::ARCH);
    let folders = ["lib/pkgconfig", "lib64/pkgconfig", &arch];
    let paths: Vec<_> = folders
        .iter()
        .map(|folder| prefix.join(folder).display().to_string())
        .collect();
    paths.join(":")
}

/// Returns the names of the missing tools, after an attempt to install compilers and CMake where
/// that is allowed.
fn missing(stop: &Stop) -> Option<String> {
    packages::install(&[&packages::GXX, &packages::CMAKE], stop);
    if compilers().next().is_none() {
        return Some(packages::GXX.absence());
    }
    (!packages::CMAKE.is_installed()).then(|| packages::CMAKE.absence())
}

pub(crate) fn command(root: &Path, prefix: Option<PathBuf>) -> ExitCode {
    let stop = match Stop::on_signals() {
        Ok(stop) => stop,
        Err(error) => {
            eprintln!("error: cannot handle signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(missing) = missing(&stop) {
        eprintln!("error: {missing}");
        return ExitCode::FAILURE;
    }
    let target = setup::target(root);
    let prefix = prefix.unwrap_or_else(|| target.join("cpp/prefix"));
    let run = |mut command: Command| {
        foreground(&mut command).map_err(|_| "a command has failed".to_owned())
    };
    let build = Build::new(root, &target, "release", &run);
    let tools = Tools::find();
    let can_sanitize = [Tool::Nightly, Tool::RustSrc]
        .iter()
        .all(|tool| tools.has(*tool));
    let result = build
        .release()
        .and_then(|()| build.all(&flavours(), &prefix))
        .and_then(|()| match tsan_compiler() {
            Ok(_) if can_sanitize => build.test_under_tsan(0),
            Ok(_) => skip_tsan("no nightly Rust with rust-src"),
            Err(missing) => skip_tsan(&missing),
        });
    match result {
        Ok(()) => {
            println!("installed into {}", prefix.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn skip_tsan(reason: &str) -> Result<(), String> {
    println!("skipped ThreadSanitizer: {reason}");
    Ok(())
}

pub(crate) fn soak(context: &Context<'_>) -> Verdict {
    for tool in [Tool::Nightly, Tool::RustSrc] {
        if !context.tools.has(tool) {
            return Ok(Done::Skipped(tool.absence()));
        }
    }
    if let Some(missing) = missing(context.stop).or(tsan_compiler().err()) {
        return Ok(Done::Skipped(missing));
    }
    let run = |command: Command| context.run(command);
    let build = Build::new(context.root, context.target, "debug", &run);
    build.debug()?;
    build.test_under_tsan(50)?;
    context.tests_passed()
}

pub(crate) fn step(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(reason.clone()));
    }
    if let Some(missing) = missing(context.stop) {
        return Ok(Done::Skipped(missing));
    }
    let run = |command: Command| context.run(command);
    let build = Build::new(context.root, context.target, "debug", &run);
    build.debug()?;
    let mut step_flavours = flavours();
    step_flavours.drain(1..step_flavours.len().saturating_sub(1));
    build.all(&step_flavours, &context.target.join("cpp/prefix"))?;
    let names: Vec<_> = compilers().collect();
    match context.tests_passed()? {
        Done::Passed(count) => Ok(Done::Passed(format!("{count}; {}", names.join(", ")))),
        skipped => Ok(skipped),
    }
}
