//! `cargo xtask cpp`, and the step `cpp` of the suite: the C ABI, the headers of C++20, their tests and programs.
//!
//! The command builds with --release, tests with the compilers that are there and with their sanitizers, installs into a prefix, and builds a program against what was
//! installed, by CMake and by pkg-config. The step does the same with the libraries of `cargo build`, which the steps before it have nearly built, and with two builds instead
//! of four: the first compiler without sanitizers, the last one with them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::bench::foreground;
use crate::host;
use crate::run::Stop;
use crate::setup;
use crate::suite::{Context, Done, Verdict};

/// Compilers of C++20 that are looked for; the first of each kind is used.
const COMPILERS: [&[&str]; 2] = [
    &["g++"],
    &["clang++", "clang++-22", "clang++-19", "clang++-16"],
];

/// What one build of the tests is like.
struct Flavour {
    name: String,
    compiler: &'static str,
    sanitizers: &'static str,
    build_type: &'static str,
}

/// Tests that are run in every flavour, and their arguments.
const TESTS: [&str; 5] = [
    "test_coroutines",
    "test_io",
    "test_no_exceptions",
    "test_shared",
    "mixed",
];

fn compilers() -> impl Iterator<Item = &'static str> {
    let found =
        |names: &&[&'static str]| names.iter().copied().find(|name| host::has_program(name));
    COMPILERS.iter().filter_map(found)
}

fn flavours() -> Vec<Flavour> {
    let mut made = Vec::new();
    for compiler in compilers() {
        for (sanitizers, build_type) in [("", "Release"), ("address,undefined", "Debug")] {
            let kind = if sanitizers.is_empty() {
                "plain"
            } else {
                "asan"
            };
            made.push(Flavour {
                name: format!("{compiler}-{kind}"),
                compiler,
                sanitizers,
                build_type,
            });
        }
    }
    made
}

/// Runs commands one after the other, until one fails.
type Run<'a> = &'a dyn Fn(Command, Duration) -> Result<(), String>;

struct Build<'a> {
    root: &'a Path,
    target: PathBuf,
    /// Where cargo has put the libraries.
    libraries: PathBuf,
    run: Run<'a>,
}

const LIMIT: Duration = Duration::from_secs(300);

impl Build<'_> {
    /// Where a flavour is built.
    fn folder(&self, name: &str) -> PathBuf {
        self.target.join("cpp").join(name)
    }

    fn cargo(&self, profile: &str) -> Result<(), String> {
        let mut command = setup::cargo(self.root);
        command.args(["build", "--profile", profile]);
        command.args([
            "-p",
            "upshift-c",
            "-p",
            "upshift-mixed",
            "-p",
            "upshift-cli",
        ]);
        (self.run)(command, Duration::from_secs(900))
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
        (self.run)(command, LIMIT)
    }

    fn build(&self, folder: &Path) -> Result<(), String> {
        let mut command = Command::new("cmake");
        command.arg("--build").arg(folder).args(["-j", "2"]);
        (self.run)(command, LIMIT)
    }

    fn test(&self, flavour: &Flavour) -> Result<(), String> {
        let folder = self.folder(&flavour.name);
        for test in TESTS {
            (self.run)(Command::new(folder.join(test)), Duration::from_secs(120))?;
        }
        // The programs are what is tested here; their own sanitizers are at work in them.
        let mut servers = Command::new(folder.join("test_servers"));
        servers.arg(&folder).arg(self.libraries.join("upshift"));
        (self.run)(servers, Duration::from_secs(120))?;
        (self.run)(
            Command::new(folder.join("priorities")),
            Duration::from_secs(60),
        )
    }

    /// Installs one flavour, and builds a program against what was installed.
    fn install(&self, flavour: &Flavour, prefix: &Path) -> Result<(), String> {
        let mut command = Command::new("cmake");
        command.arg("--install").arg(self.folder(&flavour.name));
        (self.run)(command, LIMIT)?;
        let source = self.root.join("cpp/tests/consumer");
        let folder = self.folder("consumer");
        let mut command = Command::new("cmake");
        command.arg("-S").arg(&source).arg("-B").arg(&folder);
        command
            .arg(format!("-DCMAKE_CXX_COMPILER={}", flavour.compiler))
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        (self.run)(command, LIMIT)?;
        self.build(&folder)?;
        for program in ["consumer_static", "consumer_shared"] {
            (self.run)(Command::new(folder.join(program)), Duration::from_secs(30))?;
        }
        if !host::has_program("pkg-config") {
            return Ok(());
        }
        let mut command = Command::new("sh");
        command.arg("-c").arg(
            "$CXX main.cpp -o \"$OUT\" $(pkg-config --cflags --libs upshift) -Wl,-rpath,\"$(pkg-config --variable=libdir upshift)\" && \"$OUT\"",
        );
        command
            .current_dir(&source)
            .env("CXX", flavour.compiler)
            .env("OUT", folder.join("by_pkg_config"))
            .env("PKG_CONFIG_PATH", pkg_config_path(prefix));
        (self.run)(command, LIMIT)
    }

    fn all(&self, flavours: &[Flavour], prefix: &Path) -> Result<(), String> {
        for (index, flavour) in flavours.iter().enumerate() {
            self.configure(flavour, (index == 0).then_some(prefix))?;
            self.build(&self.folder(&flavour.name))?;
            self.test(flavour)?;
        }
        match flavours.first() {
            Some(first) => self.install(first, prefix),
            None => Err("no compiler of C++20".to_owned()),
        }
    }
}

/// Where CMake has put the file of pkg-config: Debian's folder of libraries has the machine's name, others have none.
fn pkg_config_path(prefix: &Path) -> String {
    let arch = format!("lib/{}-linux-gnu/pkgconfig", std::env::consts::ARCH);
    let folders = ["lib/pkgconfig", "lib64/pkgconfig", &arch];
    let paths: Vec<_> = folders
        .iter()
        .map(|folder| prefix.join(folder).display().to_string())
        .collect();
    paths.join(":")
}

/// Why there is nothing to do it with; compilers and CMake are installed first where that is allowed.
fn missing(stop: &Stop) -> Option<String> {
    setup::install_cpp_packages(stop);
    if compilers().next().is_none() {
        return Some(setup::GXX.absence());
    }
    (!setup::CMAKE.is_there()).then(|| setup::CMAKE.absence())
}

/// `cargo xtask cpp`.
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
    let prefix = prefix.unwrap_or_else(|| root.join("target/cpp/prefix"));
    let run = |mut command: Command, _: Duration| {
        foreground(&mut command).map_err(|_| "a command has failed".to_owned())
    };
    let build = Build {
        root,
        target: root.join("target"),
        libraries: root.join("target/release"),
        run: &run,
    };
    match build
        .cargo("release")
        .and_then(|()| build.all(&flavours(), &prefix))
    {
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

/// The step of the suite.
pub(crate) fn step(context: &Context<'_>) -> Verdict {
    if let Err(reason) = context.io_uring {
        return Ok(Done::Skipped(reason.clone()));
    }
    if let Some(missing) = missing(context.stop) {
        return Ok(Done::Skipped(missing));
    }
    let run = |command: Command, limit: Duration| context.run(command, limit);
    let build = Build {
        root: context.root,
        target: context.target.to_path_buf(),
        libraries: context.target.join("debug"),
        run: &run,
    };
    build.cargo("dev")?;
    let mut chosen = flavours();
    chosen.drain(1..chosen.len().saturating_sub(1));
    build.all(&chosen, &context.target.join("cpp/prefix"))?;
    let used: Vec<_> = compilers().collect();
    match context.tests_passed()? {
        Done::Passed(count) => Ok(Done::Passed(format!("{count}; {}", used.join(", ")))),
        skipped => Ok(skipped),
    }
}
