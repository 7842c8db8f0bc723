//! Copying files, with progress.
//!
//! Two buffers: while one is written, the other is read. At each step the copy gives
//! way to what is more urgent, and its I/O has the priority of its level; so a large
//! copy at a less urgent level disturbs nothing.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use futures_lite::future::zip;

use super::{File, OpenOptions, invalid};
use upshift_ring::IoBuf;

/// Bytes read and written at a time.
const CHUNK: usize = 256 << 10;

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes copied so far.
    pub copied: u64,
    /// Bytes to copy in all, as far as the source said when the copy began.
    pub total: u64,
}

/// Copies the contents and the permissions of a file; returns the number of bytes.
///
/// # Errors
/// Of opening, reading and writing; `InvalidInput` if one of them is no regular file,
/// or both are the same. What has been written by then stays.
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    copy_with(from, to, |_| {}).await
}

/// As [`copy`], and calls `progress` at the beginning and after each piece. Dropping the
/// future ends the copy where it is.
///
/// # Errors
/// As [`copy`].
pub async fn copy_with(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    mut progress: impl FnMut(Progress),
) -> io::Result<u64> {
    let source = File::open(from).await?;
    let meant = source.metadata().await?;
    if !meant.is_file() {
        return Err(invalid("only regular files can be copied"));
    }
    let target = OpenOptions::new()
        .write(true)
        .create(true)
        .mode(meant.mode() & 0o7777)
        .open(to)
        .await?;
    let there = target.metadata().await?;
    if (there.dev(), there.ino()) == (meant.dev(), meant.ino()) {
        return Err(invalid("source and target of the copy are the same file"));
    }
    if there.is_file() {
        target.set_len(0).await?;
        if there.mode() != meant.mode() {
            let permissions = std::fs::Permissions::from_mode(meant.mode() & 0o7777);
            target.set_permissions(permissions).await?;
        }
    }
    let mut state = Progress {
        copied: 0,
        total: meant.len(),
    };
    progress(state);
    let size = usize::try_from(meant.len()).map_or(CHUNK, |length| length.clamp(4096, CHUNK));
    let (result, mut full) = source.read_at(Vec::with_capacity(size), 0).await;
    let mut count = result?;
    let mut empty = Vec::with_capacity(size);
    while count != 0 {
        let next = state.copied + count as u64;
        let (read, written) = zip(
            source.read_at(empty, next),
            target.write_all_at(full.slice(0..count), state.copied),
        )
        .await;
        written.0?;
        state.copied = next;
        progress(state);
        empty = written.1.into_inner();
        full = read.1;
        count = read.0?;
        crate::yield_if_needed().await;
    }
    Ok(state.copied)
}
