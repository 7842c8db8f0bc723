//! The disk of a machine: an image in a file, which is gone with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use os_files::BLOCK;
use os_files::direct::Mounted;

use crate::build;

/// Blocks of a disk.
const BLOCKS: usize = 1024;

/// What is on a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: it is formatted by the kernel.
    Blank,
    /// A program, as the file `bin/child`.
    Programs,
}

/// An image.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// A new one.
    pub(crate) fn new(content: Content) -> Result<Disk, String> {
        static DISKS: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), DISKS.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("os-runner-{process}-{number}.disk"));
        let disk = Disk(path);
        let io = |error: std::io::Error| format!("{}: {error}", disk.0.display());
        match content {
            Content::Blank => {
                let file = File::create(&disk.0).map_err(io)?;
                file.set_len((BLOCKS * BLOCK) as u64).map_err(io)?;
            }
            Content::Programs => fs::write(&disk.0, programs()?).map_err(io)?,
        }
        Ok(disk)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, String> {
        fs::read(&self.0).map_err(|error| format!("{}: {error}", self.0.display()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An image with a program on it.
fn programs() -> Result<Vec<u8>, String> {
    let wrong = |error: os_files::Error| format!("the disk: {error}");
    let program = build::program("child")?;
    let mut mounted = Mounted::format(vec![0; BLOCKS * BLOCK]).map_err(wrong)?;
    let file = mounted.open(b"bin/child", true).map_err(wrong)?;
    mounted.write(&file, 0, &program).map_err(wrong)?;
    mounted.volume.close(file);
    mounted.sync().map_err(wrong)?;
    Ok(mounted.disk)
}
