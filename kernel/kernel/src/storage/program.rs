//! Loads programs from files of the disk.

use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::{Error, number};
use os_files::BLOCK;

use super::OpenFile;
use crate::memory;
use crate::process::Share;
use crate::process::share::{Charge, Resource};

/// Maximum length of a program in bytes.
const MAX_LEN: usize = 2 << 20;

/// Loads the bytes of a program; returns them with their charge.
///
/// # Errors
/// [`Error::NoProgram`]; [`Error::BadProgram`] if the file is too long; [`Error::OutOfMemory`],
/// [`Error::DiskFailed`].
pub(crate) async fn load(name: &[u8], share: &Arc<Share>) -> Result<(Vec<u8>, Charge), Error> {
    let no_program = |error| match error {
        // Without a disk there is no such program either.
        Error::NoFile
        | Error::BadArgument
        | Error::DiskFailed
        | Error::NotDirectory
        | Error::IsDirectory => Error::NoProgram,
        error => error,
    };
    let file = OpenFile::open(name, 0, share).await.map_err(no_program)?;
    let size = file.seek(number::KEEP_POSITION)?;
    if size > MAX_LEN {
        return Err(Error::BadProgram);
    }
    if memory::is_short() {
        return Err(Error::OutOfMemory);
    }
    let charge = share.charge(Resource::Memory, size.div_ceil(1 << 10))?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| Error::OutOfMemory)?;
    while bytes.len() < size {
        // Read only up to the initial size, because the file may grow meanwhile.
        let len = BLOCK.min(size - bytes.len());
        let give = |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        };
        match file.read(len, give) {
            Some(Ok(0)) => break,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => file.readable().await?,
        }
    }
    Ok((bytes, charge))
}
