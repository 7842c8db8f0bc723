//! `cargo xtask setup`: finds out which requirements of the project are missing, and installs them.
//!
//! The checks mostly read the file system (a toolchain's sysroot, the PATH, /usr/include). On a
//! complete machine they start only `rustc --print sysroot` for each toolchain and `mpicc`, and
//! download nothing. A failed installation of a Rust tool or of packages is tried once more. A Rust
//! tool that is still missing is an error; a missing package is only printed.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::host;
use crate::install::install;
use crate::packages;
use crate::run::{Stop, command_line};

/// Target without an operating system, for which the core and the kernel are built.
pub(crate) const BARE_TARGET: &str = "riscv64gc-unknown-none-elf";

/// A part of a Rust toolchain that the tests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Rustfmt,
    Clippy,
    BareTarget,
    Nightly,
    Miri,
    RustSrc,
}

impl Tool {
    const ALL: [Self; 6] = [
        Self::Rustfmt,
        Self::Clippy,
        Self::BareTarget,
        Self::Nightly,
        Self::Miri,
        Self::RustSrc,
    ];

    fn is_nightly(self) -> bool {
        matches!(self, Self::Nightly | Self::Miri | Self::RustSrc)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rustfmt => "rustfmt",
            Self::Clippy => "clippy",
            Self::BareTarget => "the target riscv64gc-unknown-none-elf",
            Self::Nightly => "nightly Rust",
            Self::Miri => "miri",
            Self::RustSrc => "rust-src of nightly",
        }
    }

    fn install_args(self) -> &'static [&'static str] {
        match self {
            Self::Rustfmt => &["component", "add", "rustfmt"],
            Self::Clippy => &["component", "add", "clippy"],
            Self::BareTarget => &["target", "add", BARE_TARGET],
            // With named components rustup chooses the latest nightly that has them.
            Self::Nightly => &[
                "toolchain",
                "install",
                "nightly",
                "--no-self-update",
                "--profile",
                "minimal",
                "--component",
                "miri",
                "--component",
                "rust-src",
            ],
            Self::Miri => &["component", "add", "miri", "--toolchain", "nightly"],
            Self::RustSrc => &["component", "add", "rust-src", "--toolchain", "nightly"],
        }
    }

    fn installer(self) -> Command {
        let mut command = Command::new("rustup");
        command.args(self.install_args());
        command
    }

    /// Returns a message such as "NAME is not installed: `rustup …`".
    pub(crate) fn absence(self) -> String {
        format!(
            "{} is not installed: `{}`",
            self.name(),
            command_line(&self.installer())
        )
    }
}

/// Sysroots of the toolchain that runs this program and of nightly; `None` for a missing toolchain.
pub(crate) struct Tools {
    current: Option<PathBuf>,
    nightly: Option<PathBuf>,
}

impl Tools {
    pub(crate) fn find() -> Self {
        Self {
            current: sysroot(Command::new("rustc")),
            nightly: sysroot({
                // Unlike `rustc +nightly`, this never downloads a toolchain.
                let mut command = Command::new("rustup");
                command.args(["run", "nightly", "rustc"]);
                command
            }),
        }
    }

    pub(crate) fn has(&self, tool: Tool) -> bool {
        let path = match tool {
            Tool::Rustfmt => "bin/cargo-fmt",
            Tool::Clippy => "bin/cargo-clippy",
            Tool::BareTarget => "lib/rustlib/riscv64gc-unknown-none-elf/lib",
            Tool::Nightly => "bin/rustc",
            Tool::Miri => "bin/cargo-miri",
            Tool::RustSrc => "lib/rustlib/src/rust/library",
        };
        let root = if tool.is_nightly() {
            &self.nightly
        } else {
            &self.current
        };
        root.as_ref().is_some_and(|root| root.join(path).exists())
    }

    /// Returns whether nightly can build for `target`.
    pub(crate) fn nightly_has_target(&self, target: &str) -> bool {
        self.nightly
            .as_ref()
            .is_some_and(|root| root.join("lib/rustlib").join(target).join("lib").exists())
    }

    pub(crate) fn missing(&self) -> impl Iterator<Item = Tool> {
        Tool::ALL.into_iter().filter(|tool| !self.has(*tool))
    }

    /// Installs the tools that the test suite may install without being asked. Nightly is a large
    /// download and is installed only on a CI machine; its components are also installed where
    /// nightly is present.
    pub(crate) fn install_for_tests(&mut self, stop: &Stop) {
        let has_nightly = self.has(Tool::Nightly);
        self.install(
            |tool| host::is_ci() || has_nightly || !tool.is_nightly(),
            stop,
        );
    }

    /// Installs each missing tool of `wanted` and reports it; a tool that cannot be installed stays
    /// missing.
    pub(crate) fn install(&mut self, wanted: impl Fn(Tool) -> bool, stop: &Stop) {
        for tool in Tool::ALL {
            if !wanted(tool) || self.has(tool) || stop.is_set() {
                continue;
            }
            if !host::has_program("rustup") {
                println!(
                    "setup: {} is missing and so is rustup (https://rustup.rs)",
                    tool.name()
                );
                continue;
            }
            if retry_once(|| install(&mut tool.installer(), stop)) {
                *self = Self::find();
            }
        }
    }
}

/// HTTP/2 conformance checker, which the web server's tests use where it is installed. The tests
/// name the cases of this version.
const H2SPEC: &str = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible";

/// Returns the folder of programs that only the tests need; it is on the PATH of xtask's children.
fn programs(root: &Path) -> PathBuf {
    root.join("target/xtask/bin")
}

fn has_h2spec(root: &Path) -> bool {
    host::has_program("h2spec") || programs(root).join("h2spec").exists()
}

/// Builds a missing h2spec where Go is installed. After a failure h2spec stays missing, and its
/// test reports that.
pub(crate) fn install_h2spec(root: &Path, stop: &Stop) {
    if !has_h2spec(root) && host::has_program("go") && !stop.is_set() {
        let mut command = Command::new("go");
        command
            .args(["install", H2SPEC])
            .env("GOBIN", programs(root));
        install(&mut command, stop);
    }
}

/// A cargo subcommand that is not part of Rust.
pub(crate) struct CargoProgram {
    name: &'static str,
    purpose: &'static str,
}

pub(crate) const DENY: CargoProgram = CargoProgram {
    name: "cargo-deny",
    purpose: "licences, sources and advisories of dependencies",
};

impl CargoProgram {
    pub(crate) fn is_installed(&self, root: &Path) -> bool {
        host::has_program(self.name) || programs(root).join(self.name).exists()
    }

    /// Returns the command that builds the program for the tests only. The build takes a few
    /// minutes.
    pub(crate) fn installer(&self, root: &Path) -> Command {
        let mut command = cargo(root);
        command.args(["install", "--locked", self.name, "--root"]);
        command.arg(root.join("target/xtask"));
        command
    }

    /// Returns a message such as "NAME is not installed (PURPOSE): `cargo install --locked NAME`".
    pub(crate) fn absence(&self) -> String {
        format!(
            "{0} is not installed ({1}): `cargo install --locked {0}`",
            self.name, self.purpose
        )
    }
}

fn sysroot(mut rustc: Command) -> Option<PathBuf> {
    let output = rustc
        .args(["--print", "sysroot"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !path.trim().is_empty()).then(|| PathBuf::from(path.trim()))
}

/// Returns the folder of the linker that comes with Rust, under the name that C compilers expect.
pub(crate) fn rust_linker() -> Option<PathBuf> {
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = sysroot(Command::new("rustc"))?
        .join("lib/rustlib")
        .join(machine)
        .join("bin/gcc-ld");
    folder.join("ld.lld").exists().then_some(folder)
}

pub(crate) fn command(root: &Path) -> ExitCode {
    let stop = match Stop::on_signals() {
        Ok(stop) => stop,
        Err(error) => {
            eprintln!("error: cannot handle signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    packages::install_if(|package| package.setup_installs, &stop);
    let mut tools = Tools::find();
    tools.install(|_| true, &stop);
    install_h2spec(root, &stop);
    if !has_h2spec(root) {
        println!(
            "missing: h2spec (optional, checks the web server's HTTP/2): `go install {H2SPEC}`"
        );
    }

    if !DENY.is_installed(root) {
        println!("missing: optional, {}", DENY.absence());
    }
    for package in packages::missing() {
        println!("missing: {}", package.absence());
    }
    let missing: Vec<_> = tools.missing().collect();
    for tool in &missing {
        println!("missing: {}", tool.absence());
    }
    if let Err(reason) = host::io_uring() {
        println!("missing: {reason}");
    }
    if missing.is_empty() {
        println!(
            "setup: ready; `cargo xtask test` runs the tests in {}",
            root.display()
        );
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn retry_once(mut attempt: impl FnMut() -> bool) -> bool {
    attempt() || attempt()
}

pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
}

/// Returns the cargo command that builds the debug artefacts of the suite: the program `upshift`,
/// the libraries, the examples.
///
/// The command names the whole workspace and the examples, so that all dependencies have the
/// features of the tests' build. For one package alone cargo would select other features and build
/// most of the tree a second time.
pub(crate) fn debug_build(root: &Path) -> Command {
    let mut command = cargo(root);
    command.args(["build", "--workspace", "--lib", "--bins", "--examples"]);
    command
}

/// Returns a cargo command in `root`, without the variables that the outer `cargo run` has set
/// about this crate.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([programs(root)]);
    // If the PATH cannot be joined it stays unchanged, and the programs in the added folder are not
    // found.
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    without_cargo_run(&mut command);
    // A single build is faster without incremental compilation.
    if host::is_ci() && std::env::var_os("CARGO_INCREMENTAL").is_none() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Removes the variables by which `cargo run` describes this crate, which a child would take for
/// its own.
pub(crate) fn without_cargo_run(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
}
