//! Copies files, and reports the progress.
//!
//! A copy has two buffers: one is written while the other is read. A large copy at a less urgent
//! level does not disturb more urgent work, because the copy yields to more urgent work at each
//! step, and its I/O has the priority of its level.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use futures_lite::future::zip;

use super::{File, OpenOptions, invalid};
use upshift_ring::IoBuf;

/// Largest size of a buffer.
const CHUNK_BYTES: usize = 256 << 10;

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes copied so far.
    pub copied: u64,
    /// Bytes to copy in all, which is the length of the source when the copy began.
    pub total: u64,
}

/// Copies the contents and the permissions of a file. Returns the number of bytes copied.
///
/// # Cancellation safety
/// Not cancellation safe: a part may have been copied.
///
/// # Errors
/// Errors of opening, reading and writing; `InvalidInput` if the source is not a regular file, or
/// if source and target are the same file. Bytes that have been written stay.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let from = std::env::temp_dir().join(format!("upshift-copy-{}", std::process::id()));
/// # let to = from.with_extension("copy");
/// use upshift::fs;
///
/// fs::write(&from, "contents").await?;
/// assert_eq!(fs::copy(&from, &to).await?, 8);
/// assert_eq!(fs::read(&to).await?, b"contents");
/// # std::fs::remove_file(&from)?;
/// # std::fs::remove_file(&to)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    copy_with(from, to, |_| {}).await
}

/// Copies like [`copy`], and calls `progress` at the beginning and after each write. Dropping the
/// future ends the copy in the middle.
///
/// # Errors
/// The errors of [`copy`].
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let dir = std::env::temp_dir().join(format!("upshift-progress-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// use upshift::fs;
///
/// let (from, to) = (dir.join("from"), dir.join("to"));
/// fs::write(&from, "contents").await?;
/// let mut states = Vec::new();
/// fs::copy_with(&from, &to, |state| states.push(state)).await?;
/// assert_eq!((states[0].copied, states[0].total), (0, 8));
/// assert_eq!(states.last().map(|state| state.copied), Some(8));
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn copy_with(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    mut progress: impl FnMut(Progress),
) -> io::Result<u64> {
    let source = File::open(from).await?;
    let from_metadata = source.metadata().await?;
    if !from_metadata.is_file() {
        return Err(invalid("only regular files can be copied"));
    }
    let target = OpenOptions::new()
        .write(true)
        .create(true)
        .mode(from_metadata.mode() & 0o7777)
        .open(to)
        .await?;
    let to_metadata = target.metadata().await?;
    if (to_metadata.dev(), to_metadata.ino()) == (from_metadata.dev(), from_metadata.ino()) {
        return Err(invalid("source and target of the copy are the same file"));
    }
    if to_metadata.is_file() {
        target.set_len(0).await?;
        if to_metadata.mode() != from_metadata.mode() {
            let permissions = std::fs::Permissions::from_mode(from_metadata.mode() & 0o7777);
            target.set_permissions(permissions).await?;
        }
    }
    let mut state = Progress {
        copied: 0,
        total: from_metadata.len(),
    };
    progress(state);
    let size = usize::try_from(from_metadata.len())
        .map_or(CHUNK_BYTES, |length| length.clamp(4096, CHUNK_BYTES));
    let (result, mut full_buffer) = source.read_at(Vec::with_capacity(size), 0).await;
    let mut count = result?;
    let mut empty_buffer = Vec::with_capacity(size);
    while count != 0 {
        let next_position = state.copied + count as u64;
        let ((read_result, read_buffer), (write_result, write_slice)) = zip(
            source.read_at(empty_buffer, next_position),
            target.write_all_at(full_buffer.slice(0..count), state.copied),
        )
        .await;
        write_result?;
        state.copied = next_position;
        progress(state);
        empty_buffer = write_slice.into_inner();
        full_buffer = read_buffer;
        count = read_result?;
        crate::yield_if_needed().await;
    }
    Ok(state.copied)
}
