//! Calls cargo for what runs in the machine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of everything that runs in the machine.
const TARGET: &str = "riscv64gc-unknown-none-elf";

/// What QEMU loads.
pub(crate) struct Image {
    /// The kernel, an ELF file.
    pub(crate) kernel: PathBuf,
}

/// Builds the image; with the kernel's own tests if asked.
pub(crate) fn image(selftest: bool) -> Result<Image, String> {
    let features: &[&str] = if selftest {
        &["--features", "selftest"]
    } else {
        &[]
    };
    cargo("os-kernel", features)?;
    Ok(Image {
        kernel: output().join("os-kernel"),
    })
}

/// The workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the runner is a member of the workspace")
}

/// Where cargo puts what it has built.
fn output() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| root().join("target"));
    target.join(TARGET).join("release")
}

fn cargo(package: &str, more: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root())
        .args(["build", "--quiet", "--release", "--target", TARGET])
        .args(["--package", package])
        .args(more)
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "{package} does not build; is the target there? rustup target add {TARGET}"
    ))
}
