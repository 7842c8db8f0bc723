//! Files of the disk: descriptors, read and written like pipes, each at a place of its own.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

pub use os_abi::number::{CREATE, TRUNCATE};
use os_abi::{Error, number};

use crate::asynchronous::{self, Call, Read};
use crate::coroutine::Cid;
use crate::sys;

/// Opens a file, at its beginning. Its name is a path, as `bin/hello`; directories come and go
/// with their files.
///
/// # Errors
/// [`Error::NoFile`], [`Error::NoSpace`], [`Error::BadArgument`]: no path.
/// [`Error::IsDirectory`], [`Error::NotDirectory`]: a part of the path is a file.
/// [`Error::DiskFailed`].
pub fn open(name: &str, flags: usize) -> Result<usize, Error> {
    Ok(sys::open(name.as_ptr() as usize, name.len(), flags)? as usize)
}

/// The same; the coroutine `cid` is woken.
pub fn open_async(name: &str, flags: usize, cid: Cid) -> Call {
    // The kernel has read the name when the call returns.
    asynchronous::open(name, flags, cid)
}

/// Waits until all that was written to the disk before stays there.
///
/// # Errors
/// [`Error::DiskFailed`].
pub fn fsync(file: usize) -> Result<(), Error> {
    sys::fsync(file).map(|_| ())
}

/// The same; the coroutine `cid` is woken.
pub fn fsync_async(file: usize, cid: Cid) -> Call {
    asynchronous::fsync(file, cid)
}

/// Takes the name of a file away; it is gone when no descriptor has it open.
///
/// # Errors
/// [`Error::NoFile`], [`Error::DiskFailed`].
pub fn unlink(name: &str) -> Result<(), Error> {
    sys::unlink(name.as_ptr() as usize, name.len()).map(|_| ())
}

/// The same; the coroutine `cid` is woken.
pub fn unlink_async(name: &str, cid: Cid) -> Call {
    asynchronous::unlink(name, cid)
}

/// Where the file is read or written next.
///
/// # Errors
/// [`Error::BadFile`].
pub fn seek(file: usize, position: u64) -> Result<(), Error> {
    sys::seek(file, position as usize).map(|_| ())
}

/// How many bytes it has.
///
/// # Errors
/// [`Error::BadFile`].
pub fn size(file: usize) -> Result<u64, Error> {
    Ok(sys::seek(file, number::STAY)? as u64)
}

/// The bytes of a file from where it is to its end.
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

/// The bytes of a word and of the longest name.
const LISTED: usize = 8 + 64;

fn parse(answer: usize, bytes: &[u8]) -> (usize, String, u64) {
    let (next, len) = (answer & 0xffff_ffff, answer >> 32);
    let size = bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word));
    let name = bytes.get(8..8 + len).unwrap_or_default();
    (next, String::from_utf8_lossy(name).into_owned(), size)
}

/// All files: names and bytes of each.
///
/// # Errors
/// [`Error::DiskFailed`].
pub fn list() -> Result<Vec<(String, u64)>, Error> {
    let mut files = Vec::new();
    let (mut from, mut bytes) = (0, [0; LISTED]);
    loop {
        let answer = sys::list(from, bytes.as_mut_ptr() as usize, bytes.len())? as usize;
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
    /// Its name in the directory.
    pub name: String,
    /// Bytes of a file; `None`: a directory.
    pub size: Option<u64>,
}

/// Lists a directory by name, each entry once; the empty path is the whole disk.
///
/// # Errors
/// [`Error::NoFile`]: there is no such directory. [`Error::NotDirectory`]: it is a file.
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

/// The first file whose number is not below `from`: its number plus 1, name and bytes. The coroutine `cid` is woken.
///
/// # Errors
/// [`Error::DiskFailed`].
pub async fn list_async(from: usize, cid: Cid) -> Result<Option<(usize, String, u64)>, Error> {
    let listed: Read = asynchronous::list(from, vec![0; LISTED], cid);
    let (answer, bytes) = listed.await;
    let answer = answer?;
    Ok((answer != 0).then(|| parse(answer, &bytes)))
}
