//! `cargo xtask package deb`: lays out a file tree and makes a Debian package of it with
//! `dpkg-deb`. `cargo xtask package image` is in `image.rs`.
//!
//! The tree is target/xtask/package. The finished package is unpacked and inspected: it must
//! contain every promised file, and the command must run from it. As root the package is also
//! installed, used and removed in a disposable copy of this machine's files (`trial.rs`).
//! `cargo xtask test package` does all that with the debug build of the command.

pub(crate) mod image;
mod trial;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::ValueEnum;

use crate::bench::foreground;
use crate::host;
use crate::setup;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files without which [`inspect`] rejects the package. The other man pages are not checked.
const REQUIRED_FILES: [&str; 10] = [
    "./usr/bin/upshift",
    "./usr/lib/systemd/system/upshift-daemon.service",
    "./usr/lib/systemd/system/upshift-sched.service",
    "./usr/share/doc/upshift/sched.toml",
    "./etc/upshift/daemon.toml",
    "./usr/share/man/man1/upshift.1.gz",
    "./usr/share/man/man1/upshift-daemon.1.gz",
    "./usr/share/bash-completion/completions/upshift",
    "./usr/share/zsh/vendor-completions/_upshift",
    "./usr/share/fish/vendor_completions.d/upshift.fish",
];

/// Script after unpacking: creates the socket's group, which the configuration may name, and
/// restarts running units of a former version, after which clients of the daemon join it again.
const POSTINST: &str = "#!/bin/sh
set -e
if [ \"$1\" = configure ]; then
    getent group upshift >/dev/null || groupadd --system upshift
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload
        [ -z \"$2\" ] || deb-systemd-invoke try-restart upshift-daemon.service upshift-sched.service || true
    fi
fi
";

/// Script before removal: stops the scheduler and the daemon, which restore all threads.
const PRERM: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop upshift-sched.service upshift-daemon.service || true
fi
";

/// Script after removal: undoes `systemctl enable`. A purge also removes the group, unless it has
/// members.
const POSTRM: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ]; then
    rm -f /etc/systemd/system/multi-user.target.wants/upshift-daemon.service
    rm -f /etc/systemd/system/multi-user.target.wants/upshift-sched.service
    [ ! -d /run/systemd/system ] || systemctl --system daemon-reload
    rmdir /run/upshift 2>/dev/null || true
fi
if [ \"$1\" = purge ]; then
    if getent group upshift | grep -q ':$'; then groupdel upshift || true; fi
fi
";

const COPYRIGHT: &str = "Upshift may be used under the Apache License 2.0, which is in /usr/share/common-licenses/Apache-2.0, or under this license, as you like:

";

/// A form in which the command is distributed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Form {
    /// A Debian package: target/xtask/upshift_VERSION_ARCH.deb
    Deb,
    /// A container image, for `docker load` or `podman load`:
    /// target/xtask/upshift_VERSION_image.tar
    Image,
}

/// Builds a package; the exit status is that of the first command that fails.
pub(crate) fn command(root: &Path, form: Form) -> ExitCode {
    let mut build = setup::cargo(root);
    build.args(["build", "--release", "-p", "upshift-cli"]);
    if let Err(code) = foreground(&mut build) {
        return code;
    }
    let binary = setup::target(root).join("release/upshift");
    let result = match form {
        Form::Deb => package(root, &binary),
        Form::Image => image::image(root, &binary),
    };
    match result {
        Ok((path, trial_result)) => {
            println!("{trial_result}");
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The file tree of a package.
struct Tree(PathBuf);

impl Tree {
    fn add_file(&self, text: &[u8], place: &str, mode: u32) -> io::Result<()> {
        let path = self.0.join(place);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
    }

    fn copy(&self, from: &Path, place: &str) -> io::Result<()> {
        self.add_file(&fs::read(from)?, place, 0o644)
    }

    /// Returns the installed size in KiB.
    fn size(&self) -> io::Result<u64> {
        let listing = output(
            Command::new("du")
                .args(["-sk", "--apparent-size"])
                .arg(&self.0),
        )?;
        let size = listing
            .split_whitespace()
            .next()
            .and_then(|size| size.parse().ok());
        size.ok_or_else(|| io::Error::other(listing))
    }
}

/// Builds and tries a package with this command; returns its path and the result of the trial.
pub(crate) fn package(root: &Path, binary: &Path) -> io::Result<(PathBuf, String)> {
    let work = setup::target(root).join("xtask");
    let (tree, documents) = (Tree(work.join("package")), work.join("documents"));
    for directory in [&tree.0, &documents] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
    }
    output(Command::new(binary).arg("documents").arg(&documents))?;
    tree.add_file(&fs::read(binary)?, "usr/bin/upshift", 0o755)?;
    strip(&tree.0.join("usr/bin/upshift"))?;
    let dist = root.join("machine/daemon/dist");
    tree.copy(&dist.join("daemon.toml"), "etc/upshift/daemon.toml")?;
    let sched_dist = root.join("machine/sched/dist");
    // The units in dist/ name the paths of a manual installation.
    for (dist, name) in [(&dist, "upshift-daemon"), (&sched_dist, "upshift-sched")] {
        let unit = fs::read_to_string(dist.join(format!("{name}.service")))?;
        let unit = unit.replace("/usr/local/bin/", "/usr/bin/");
        let place = format!("usr/lib/systemd/system/{name}.service");
        tree.add_file(unit.as_bytes(), &place, 0o644)?;
    }
    for (name, place) in [
        ("upshift", "bash-completion/completions/upshift"),
        ("_upshift", "zsh/vendor-completions/_upshift"),
        ("upshift.fish", "fish/vendor_completions.d/upshift.fish"),
    ] {
        let from = documents.join("completions").join(name);
        tree.copy(&from, &format!("usr/share/{place}"))?;
    }
    for page in fs::read_dir(documents.join("man1"))? {
        let page = page?.path();
        let name = page.file_name().unwrap_or_default().to_string_lossy();
        let place = format!("usr/share/man/man1/{name}.gz");
        tree.add_file(&gzip(&page)?, &place, 0o644)?;
    }
    let doc = "usr/share/doc/upshift";
    let changes = documents.join("changelog");
    let text = format!(
        "upshift ({VERSION}) unstable; urgency=medium\n\n  * The changes are in CHANGELOG.md.gz.\n\n -- {}  {}",
        maintainer(),
        output(Command::new("date").arg("-R"))?
    );
    fs::write(&changes, text)?;
    tree.add_file(&gzip(&changes)?, &format!("{doc}/changelog.gz"), 0o644)?;
    let changes = gzip(&root.join("CHANGELOG.md"))?;
    tree.add_file(&changes, &format!("{doc}/CHANGELOG.md.gz"), 0o644)?;
    let license = fs::read_to_string(root.join("LICENSE-MIT"))?;
    let license = format!("{COPYRIGHT}{license}");
    tree.add_file(license.as_bytes(), &format!("{doc}/copyright"), 0o644)?;
    for page in [
        "daemon.md",
        "observe.md",
        "sched.md",
        "serve.md",
        "threat-model.md",
    ] {
        tree.copy(&root.join("docs").join(page), &format!("{doc}/{page}"))?;
    }
    tree.copy(&sched_dist.join("sched.toml"), &format!("{doc}/sched.toml"))?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let command = fs::read(tree.0.join("usr/bin/upshift"))?;
    let control = control(&command, tree.size()?, architecture);
    let sums = sums(&tree.0)?;
    tree.add_file(sums.as_bytes(), "DEBIAN/md5sums", 0o644)?;
    tree.add_file(control.as_bytes(), "DEBIAN/control", 0o644)?;
    tree.add_file(b"/etc/upshift/daemon.toml\n", "DEBIAN/conffiles", 0o644)?;
    tree.add_file(POSTINST.as_bytes(), "DEBIAN/postinst", 0o755)?;
    tree.add_file(PRERM.as_bytes(), "DEBIAN/prerm", 0o755)?;
    tree.add_file(POSTRM.as_bytes(), "DEBIAN/postrm", 0o755)?;
    let path = work.join(format!("upshift_{VERSION}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--build", "--root-owner-group"]);
    output(build.arg(&tree.0).arg(&path))?;
    inspect(&path, &work.join("unpacked"))?;
    let trial_result = trial::try_package(&path, &work)?;
    Ok((path, trial_result))
}

/// Removes symbols and notes from a program if `strip` is installed.
fn strip(program: &Path) -> io::Result<()> {
    if host::has_program("strip") {
        let mut strip = Command::new("strip");
        strip.args(["--remove-section=.comment", "--remove-section=.note"]);
        output(strip.arg(program))?;
    }
    Ok(())
}

/// Returns the checksums by which `dpkg --verify` detects changed files.
fn sums(tree: &Path) -> io::Result<String> {
    let mut find = Command::new("sh");
    find.current_dir(tree);
    output(find.args([
        "-c",
        "find etc usr -type f -print0 | sort -z | xargs -0 md5sum",
    ]))
}

/// Returns the package's maintainer: the user that builds it, by Debian's variables.
fn maintainer() -> String {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_string());
    let name = variable("DEBFULLNAME", "Upshift");
    format!("{name} <{}>", variable("DEBEMAIL", "upshift@localhost"))
}

/// Returns the control file that dpkg reads.
fn control(binary: &[u8], size: u64, architecture: &str) -> String {
    [
        "Package: upshift",
        &format!("Version: {VERSION}"),
        &format!("Architecture: {architecture}"),
        &format!("Maintainer: {}", maintainer()),
        "Section: admin",
        "Priority: optional",
        &format!("Installed-Size: {size}"),
        &format!(
            "Depends: libc6 (>= 2.{}), libgcc-s1, passwd",
            needed_libc(binary)
        ),
        "Description: priority scheduler for coroutines and processes",
        " The upshift command: the machine-wide daemon that runs the most urgent",
        " process of each CPU, policies in user space for unmodified programs, a",
        " web server in which every request has a priority, and tools that measure them.",
        "",
    ]
    .join("\n")
}

/// Checks that the package contains the promised files and that the command runs.
fn inspect(package: &Path, unpacked: &Path) -> io::Result<()> {
    let list = output(Command::new("dpkg-deb").arg("--contents").arg(package))?;
    for required in REQUIRED_FILES {
        if !list.lines().any(|line| line.ends_with(required)) {
            let text = format!("{required} is not in the package");
            return Err(io::Error::other(text));
        }
    }
    let _ = fs::remove_dir_all(unpacked);
    let mut extract = Command::new("dpkg-deb");
    output(extract.arg("--extract").arg(package).arg(unpacked))?;
    let version = output(Command::new(unpacked.join("usr/bin/upshift")).arg("--version"))?;
    if !version.contains(VERSION) {
        return Err(io::Error::other(format!(
            "the packaged command is not version {VERSION}: {version}"
        )));
    }
    Ok(())
}

/// Compresses a file as Debian's policy requires.
fn gzip(path: &Path) -> io::Result<Vec<u8>> {
    let output = Command::new("gzip").arg("-9nc").arg(path).output()?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(io::Error::other(format!(
            "gzip failed for {}",
            path.display()
        )))
    }
}

/// Returns the newest minor version 2.x of the C library whose symbols the program needs; at least
/// 17, because Rust needs 2.17.
fn needed_libc(binary: &[u8]) -> u32 {
    let mark = b"GLIBC_2.";
    let versions = binary.windows(mark.len() + 3).filter_map(|window| {
        let digits = window.strip_prefix(mark)?;
        let end = digits.iter().position(|byte| !byte.is_ascii_digit());
        let digits = &digits[..end.unwrap_or(digits.len())];
        std::str::from_utf8(digits).ok()?.parse().ok()
    });
    versions.max().unwrap_or(17)
}

fn output(command: &mut Command) -> io::Result<String> {
    let result = command.output()?;
    if !result.status.success() {
        let text = String::from_utf8_lossy(&result.stderr).into_owned();
        return Err(io::Error::other(format!("{command:?}: {text}")));
    }
    Ok(String::from_utf8_lossy(&result.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_determines_the_needed_library() {
        assert_eq!(needed_libc(b"..GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.17\0..."), 34);
        let control = control(b"GLIBC_2.36\0....", 7, "amd64");
        assert!(control.contains("Depends: libc6 (>= 2.36)"));
        assert!(control.ends_with(".\n"));
    }
}
