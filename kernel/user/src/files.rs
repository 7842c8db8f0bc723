//! Files of the disk: descriptors that are read and written like pipes, and have a position.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

pub use os_abi::number::{CREATE, TRUNCATE};
use os_abi::{Error, number};

pub use crate::calls::{fsync, fsync_async, open, open_async, unlink, unlink_async};
use crate::coroutine::Cid;
use crate::{calls, sys};

/// Sets the position of the next read or write.
///
/// # Errors
/// [`Error::BadFile`].
pub fn seek(file: usize, position: u64) -> Result<(), Error> {
    sys::seek(file, position as usize).map(|_| ())
}

/// Returns the length of a file in bytes.
///
/// # Errors
/// [`Error::BadFile`].
pub fn size(file: usize) -> Result<u64, Error> {
    Ok(sys::seek(file, number::KEEP_POSITION)? as u64)
}

/// Reads the bytes of a file from its position to its end.
///
/// # Errors
/// [`Error::BadFile`], [`Error::DiskFailed`].
pub fn read_to_end(file: usize) -> Result<Vec<u8>, Error> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 4096]);
    loop {
        match crate::read(file, &mut buffer)? {
            0 => return Ok(all),
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Length of an entry of `list`: a word, and a name of maximum length.
const ENTRY_LEN: usize = 8 + 64;

fn parse(answer: usize, bytes: &[u8]) -> (usize, String, u64) {
    let (next, len) = (answer & 0xffff_ffff, answer >> 32);
    let size = bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word));
    let name = bytes.get(8..8 + len).unwrap_or_default();
    (next, String::from_utf8_lossy(name).into_owned(), size)
}

/// Lists the names and lengths of all files.
///
/// # Errors
/// [`Error::DiskFailed`].
pub fn list() -> Result<Vec<(String, u64)>, Error> {
    let mut files = Vec::new();
    let (mut from, mut bytes) = (0, [0; ENTRY_LEN]);
    loop {
        let answer = calls::list(from, &mut bytes)?;
        if answer == 0 {
            return Ok(files);
        }
        let (next, name, size) = parse(answer, &bytes);
        files.push((name, size));
        from = next;
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name of the file in the directory.
    pub name: String,
    /// Length of a file in bytes; `None` for a directory.
    pub size: Option<u64>,
}

/// Lists a directory, each entry once; the empty path is the whole disk.
///
/// # Errors
/// [`Error::NoFile`] if there is no such directory, [`Error::NotDirectory`] if it is a file,
/// [`Error::DiskFailed`].
pub fn directory(path: &str) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for (name, size) in list()? {
        let rest = match path {
            "" => Some(&name[..]),
            _ if name == path => return Err(Error::NotDirectory),
            _ => name
                .strip_prefix(path)
                .and_then(|rest| rest.strip_prefix('/')),
        };
        entries.extend(rest.map(|rest| match rest.split_once('/') {
            Some((directory, _)) => Entry {
                name: directory.into(),
                size: None,
            },
            None => Entry {
                name: rest.into(),
                size: Some(size),
            },
        }));
    }
    if entries.is_empty() && !path.is_empty() {
        return Err(Error::NoFile);
    }
    entries.sort();
    entries.dedup();
    Ok(entries)
}

/// Returns the first file whose number is not below `from`: its number plus 1, its name and its
/// length. The completion wakes the coroutine `cid`.
///
/// # Errors
/// [`Error::DiskFailed`].
pub async fn list_async(from: usize, cid: Cid) -> Result<Option<(usize, String, u64)>, Error> {
    let (answer, bytes) = calls::list_async(from, vec![0; ENTRY_LEN], cid).await;
    let answer = answer?;
    Ok((answer != 0).then(|| parse(answer, &bytes)))
}
