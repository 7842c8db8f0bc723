//! Creates and fills images of disks. The image of a test is removed when its [`Disk`] is
//! dropped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use os_files::direct::Mounted;
use os_files::{BLOCK, Error};

use crate::{build, elf_patch};

/// Size of a test's disk, in blocks.
const BLOCKS: usize = 1024;
/// Size of a disk that a user creates, in blocks: 16 MiB.
const DEFAULT_BLOCKS: usize = 4096;
/// Size of a program that is too large, in bytes.
const OVERSIZE: usize = (2 << 20) + 1;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Blank,
    /// A valid program, the file `bin/child`, beside files that the kernel must not run.
    Programs,
}

/// A temporary disk image, removed on drop.
pub(crate) struct Disk(PathBuf);

impl Disk {
    pub(crate) fn new(content: Content) -> Result<Disk, String> {
        static DISKS: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), DISKS.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("os-runner-{process}-{number}.disk"));
        let disk = Disk(path);
        let io_message = |error: std::io::Error| format!("{}: {error}", disk.0.display());
        match content {
            Content::Blank => {
                let file = File::create(&disk.0).map_err(io_message)?;
                file.set_len((BLOCKS * BLOCK) as u64).map_err(io_message)?;
            }
            Content::Programs => fs::write(&disk.0, programs()?).map_err(io_message)?,
        }
        Ok(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn bytes(&self) -> Result<Vec<u8>, String> {
        fs::read(&self.0).map_err(|error| format!("{}: {error}", self.0.display()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns an image with a valid program, and with files that the kernel must not run.
fn programs() -> Result<Vec<u8>, String> {
    let message = |error: Error| format!("the disk: {error}");
    let program = build::program("child")?;
    let mut mounted = Mounted::format(vec![0; BLOCKS * BLOCK]).map_err(message)?;
    let stripped = elf_patch::stripped(program.clone());
    let truncated = &stripped[..stripped.len() / 2];
    let text = b"this is no program\n";
    // Only the length makes this program invalid.
    let mut large = program.clone();
    large.resize(OVERSIZE, 0);
    for (name, bytes) in [
        ("bin/child", &program[..]),
        ("bin/truncated", truncated),
        ("bin/large", &large),
        ("bin/empty", b""),
        ("notes/text", text),
    ] {
        mounted.put(name.as_bytes(), bytes).map_err(message)?;
    }
    mounted.sync().map_err(message)?;
    Ok(mounted.disk)
}

/// Creates a blank image and reports it, unless the file exists.
pub(crate) fn create_if_missing(file: &Path) -> Result<(), String> {
    if file.exists() {
        return Ok(());
    }
    let len = (DEFAULT_BLOCKS * BLOCK) as u64;
    File::create(file)
        .and_then(|image| image.set_len(len))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    eprintln!("{}: a new disk, {} MiB", file.display(), len >> 20);
    Ok(())
}

/// Writes files to an image, each under its name, and prints a list of all files of the image. The
/// image is created if it is missing.
pub(crate) fn put_and_list(image: &Path, files: &[(String, Vec<u8>)]) -> Result<(), String> {
    create_if_missing(image)?;
    let io_message = |error: std::io::Error| format!("{}: {error}", image.display());
    let bytes = fs::read(image).map_err(io_message)?;
    let message = |error: Error| match error {
        Error::Damaged | Error::Failed => format!(
            "{}: not a disk of this kernel, or damaged; use another file",
            image.display()
        ),
        error => format!("{}: {error}", image.display()),
    };
    let mut mounted = match Mounted::mount(bytes.clone()) {
        Err(Error::Blank) => Mounted::format(bytes),
        outcome => outcome,
    }
    .map_err(message)?;
    for (name, bytes) in files {
        let put = mounted.put(name.as_bytes(), bytes);
        put.map_err(|error| format!("{}: {name}: {error}", image.display()))?;
    }
    mounted.sync().map_err(message)?;
    let mut from = 0;
    while let Some(listed) = mounted.volume.list(from) {
        println!("{:>9} {}", listed.size, listed.name);
        from = listed.next;
    }
    if files.is_empty() {
        return Ok(());
    }
    fs::write(image, &mounted.disk).map_err(io_message)
}
