//! Lists the crates of the main workspace, which has one folder for each layer of ARCHITECTURE.md.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders of the layers, from the core outwards.
pub(crate) const LAYERS: [&str; 5] = ["scheduler", "linux", "machine", "web", "tools"];

/// Returns the folder of each crate, in order.
///
/// # Errors
/// A layer cannot be read.
pub(crate) fn crates(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for layer in LAYERS {
        for entry in fs::read_dir(root.join(layer))? {
            folders.push(entry?.path());
        }
    }
    folders.retain(|path| path.join("Cargo.toml").exists());
    folders.sort();
    Ok(folders)
}
