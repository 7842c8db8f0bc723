//! Builds the kernel, the vDSO and the programs with cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{archive, elf_patch};

const TARGET: &str = "riscv64gc-unknown-none-elf";

pub(crate) const VDSO: &str = "vdso";

/// Name of the program whose damaged copies the archive contains.
const TEMPLATE: &str = "child";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// RV64GC with Zba, Zbb and Zbs, as in kernel/.cargo/config.toml.
    Default,
    /// RV64GC, for processors without bit manipulation.
    Rv64gc,
}

impl Isa {
    pub(crate) fn from_flag(rv64gc: bool) -> Isa {
        if rv64gc { Isa::Rv64gc } else { Isa::Default }
    }

    /// Returns the target folder. Each instruction set has its own, because one build would replace
    /// the other.
    fn target(self) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| root().join("target"));
        match self {
            Isa::Default => target,
            Isa::Rv64gc => target.join("rv64gc"),
        }
    }

    fn output(self) -> PathBuf {
        self.target().join(TARGET).join("release")
    }
}

/// QEMU's name of the processor without bit manipulation.
pub(crate) const RV64GC_CPU: &str = "rv64,zba=off,zbb=off,zbs=off";

#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) archive: PathBuf,
}

/// Builds the kernel and the programs. The kernel includes its own tests, which run only when the
/// command line requests them.
pub(crate) fn image() -> Result<Image, String> {
    image_for(Isa::Default)
}

/// Builds the image for a processor with these instructions.
pub(crate) fn image_for(isa: Isa) -> Result<Image, String> {
    run_cargo(isa, "build", "os-kernel", &["--features", "selftest"])?;
    run_cargo(isa, "build", "os-user", &["--bins"])?;
    // A shared object needs position-independent code; cargo has no setting for it.
    let position_independent = ["--", "-C", "relocation-model=pic"];
    run_cargo(isa, "rustc", "os-vdso", &position_independent)?;
    variant_for(isa, "programs", |_, file| file)
}

/// Builds the image of a kernel that has a thread for each call that waits.
pub(crate) fn with_kernel_threads() -> Result<Image, String> {
    with_feature("kernel-threads")
}

/// Builds the image of a kernel that the page tables of programs do not map.
pub(crate) fn isolated() -> Result<Image, String> {
    with_feature("isolated")
}

/// Builds the image with another feature of the kernel.
fn with_feature(feature: &str) -> Result<Image, String> {
    let features = format!("selftest,{feature}");
    run_cargo(
        Isa::Default,
        "build",
        "os-kernel",
        &["--features", &features],
    )?;
    let built = output().join("os-kernel");
    let kernel = output().join(format!("os-kernel-{feature}"));
    std::fs::copy(&built, &kernel).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(Image { kernel, ..image()? })
}

/// Copies the last image with changed files: `change` gets the name and the bytes of each file.
/// `name` distinguishes the variants.
pub(crate) fn variant(
    name: &str,
    change: impl Fn(&str, Vec<u8>) -> Vec<u8>,
) -> Result<Image, String> {
    variant_for(Isa::Default, name, change)
}

fn variant_for(
    isa: Isa,
    name: &str,
    change: impl Fn(&str, Vec<u8>) -> Vec<u8>,
) -> Result<Image, String> {
    let output = isa.output();
    let archive = output.join(format!("{name}.cpio"));
    let mut files = Vec::new();
    let vdso = (VDSO.to_owned(), output.join("os-vdso"));
    for (name, file) in programs(&output)?.into_iter().chain([vdso]) {
        let bytes = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let bytes = change(&name, bytes);
        files.push((name, bytes));
    }
    let template = files.iter().find(|(name, _)| name == TEMPLATE);
    let invalid = template.map(|(_, file)| elf_patch::invalid_programs(file));
    files.extend(invalid.into_iter().flatten());
    let bytes = archive::write(files);
    std::fs::write(&archive, bytes).map_err(|error| format!("{}: {error}", archive.display()))?;
    Ok(Image {
        kernel: output.join("os-kernel"),
        archive,
    })
}

/// Returns the bytes of a built program, or of the vDSO.
pub(crate) fn program(name: &str) -> Result<Vec<u8>, String> {
    let file = output().join(name);
    std::fs::read(&file).map_err(|error| {
        let (file, sources) = (file.display(), root().join("user/src/bin"));
        format!(
            "{file}: {error}; is there a program `{name}` in {}?",
            sources.display()
        )
    })
}

/// Returns name and path of each program in the source tree.
fn programs(output: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let sources = root().join("user/src/bin");
    let entries =
        std::fs::read_dir(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    let mut programs: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.path().file_stem()?.to_string_lossy().into_owned();
            let file = output.join(&name);
            Some((name, file))
        })
        .collect();
    programs.sort();
    Ok(programs)
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the runner is a member of the workspace")
}

fn output() -> PathBuf {
    Isa::Default.output()
}

fn run_cargo(isa: Isa, task: &str, package: &str, arguments: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    if isa == Isa::Rv64gc {
        // Replaces the flags of kernel/.cargo/config.toml.
        command.env("RUSTFLAGS", "-C target-feature=-zba,-zbb,-zbs");
        command.env("CARGO_TARGET_DIR", isa.target());
    }
    let status = command
        .current_dir(root())
        .args([task, "--quiet", "--release", "--target", TARGET])
        .args(["--package", package])
        .args(arguments)
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "{package} does not build; is the target installed? rustup target add {TARGET}"
    ))
}
