//! Builds the programs of the benchmarks with cargo, Go, or a C or C++ compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::options::bench_dir;

/// Location of the sources of a program, or an installed program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A package of the root workspace.
    Root(&'static str),
    /// A package of the benchmarks' workspace.
    Bench(&'static str),
    /// A folder of Go sources, and the name of the program.
    Go(&'static str, &'static str),
    /// A shell script of `peers`, and the installed program that it needs.
    Script(&'static str, &'static str),
    /// An installed program, and its Debian package.
    Installed(&'static str, &'static str),
    /// A C file of `peers/c` without its suffix, and further arguments of the compiler.
    C(&'static str, &'static [&'static str]),
    /// A C++ file of `peers/cpp` without its suffix, the name of its program, and further arguments
    /// of the compiler.
    Cpp(&'static str, &'static str, &'static [&'static str]),
}

/// Builds a program and returns its location.
///
/// # Errors
/// A tool is missing or fails. The error contains the first error line of its output, or advice.
pub(crate) fn build(source: Source) -> Result<PathBuf, String> {
    let bench = bench_dir();
    match source {
        Source::Root(package) => cargo(bench.parent().unwrap_or(&bench), package, None),
        Source::Bench(package) => cargo(&bench, package, None),
        Source::Go(folder, name) => {
            let output = output_file(name)?;
            let mut command = Command::new("go");
            command
                .args(["build", "-o"])
                .arg(&output)
                .arg(".")
                .current_dir(bench.join(folder));
            run_tool(
                &mut command,
                "install Go 1.22 or later to measure this program",
            )?;
            Ok(output)
        }
        Source::Script(file, program) => {
            installed(program, "nginx-light")?;
            Ok(bench.join("peers").join(file))
        }
        Source::Installed(program, package) => installed(program, package),
        Source::C(name, libs) => {
            let output = output_file(&format!("peer-c-{name}"))?;
            let mut command = Command::new("cc");
            command
                .args(["-O3", "-std=gnu11", "-Wall", "-o"])
                .arg(&output)
                .arg(bench.join(format!("peers/c/{name}.c")))
                .args(libs);
            let advice = "needs a C compiler and liburing: apt-get install -y gcc liburing-dev";
            run_tool(&mut command, advice)?;
            Ok(output)
        }
        Source::Cpp(file, name, args) => {
            let root = bench.parent().unwrap_or(&bench);
            let output = output_file(&format!("peer-{name}"))?;
            let mut command = Command::new("c++");
            command
                .args(["-O3", "-std=c++20", "-o"])
                .arg(&output)
                .arg(format!("-I{}", root.join("cpp/include").display()))
                .arg(format!("-I{}", root.join("cpp/examples").display()))
                .arg(bench.join(format!("peers/cpp/{file}.cpp")));
            if ["servers", "files"].contains(&file) {
                command.arg(cargo_library(root, "upshift-c-library", "libupshift_c.a")?);
            }
            command.args(args).args(["-lpthread", "-ldl", "-lm"]);
            let advice =
                "needs g++ 12, Asio and liburing: apt-get install -y g++ libasio-dev liburing-dev";
            run_tool(&mut command, advice)?;
            Ok(output)
        }
    }
}

fn installed(program: &str, package: &str) -> Result<PathBuf, String> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let mut files = folders
        .map(|folder| Path::new(folder).join(program))
        .into_iter();
    let file = files.find(|file| file.exists());
    file.ok_or_else(|| format!("{program} is not installed: apt-get install -y {package}"))
}

pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| bench_dir().join("target"), PathBuf::from)
}

fn output_file(name: &str) -> Result<PathBuf, String> {
    let folder = target_dir().join("peers");
    std::fs::create_dir_all(&folder)
        .map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    Ok(folder.join(name))
}

/// Runs a compiler or cargo to its end.
///
/// # Errors
/// The command fails. The error contains its first error line, and `advice`.
fn run_tool(command: &mut Command, advice: &str) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|e| format!("cannot start {:?} ({e}); {advice}", command.get_program()))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let first_error = message.lines().find(|l| l.contains("error")).unwrap_or("");
    Err(format!("{first_error}; {advice}"))
}

/// Builds a package of the root workspace and returns the path of its static library `name`.
fn cargo_library(root: &Path, package: &str, name: &str) -> Result<PathBuf, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--release", "-p", package])
        .current_dir(root);
    run_tool(&mut command, "the C ABI of Upshift does not build")?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release").join(name))
}

/// Builds a package of the workspace at `root`, in cargo's default folder or in `target`, and
/// returns its program.
pub(crate) fn cargo(
    root: &Path,
    package: &'static str,
    target: Option<&Path>,
) -> Result<PathBuf, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let output = command
        .args([
            "build",
            "--release",
            "--message-format=json-render-diagnostics",
        ])
        .args(["-p", package])
        .current_dir(root)
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let first_error = message.lines().find(|l| l.starts_with("error"));
        return Err(first_error.unwrap_or("cargo build failed").to_owned());
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|m| m["executable"].as_str().map(PathBuf::from))
        .next_back()
        .ok_or_else(|| format!("{package} has no executable"))
}
