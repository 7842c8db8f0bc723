//! Calls for files of the disk. Bytes are copied between the program's memory and the cached blocks
//! of files.

use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::{Error, UserRange};

use super::Answer;
use super::later::CallStart;
use super::now::{MAX_NAME, bytes};
use crate::memory::pagetable::Access;
use crate::memory::user::UserSlice;
use crate::process::{File, Process, Thread};
use crate::storage::{self, OpenFile};

type Arguments = [usize; 6];

/// Reads bytes that are in memory. Returns `None` if none are.
pub(super) fn read(process: &Process, file: &OpenFile, to: UserSlice) -> Option<Answer> {
    let space = match process.space() {
        Ok(space) => space,
        Err(error) => return Some(Err(error)),
    };
    let count = file.read(to.len(), |bytes| {
        space.write(to.part(0, bytes.len()), bytes)
    })?;
    Some(count.map(|count| count as isize))
}

/// With `all`, writes all bytes or none, else as many as fit into a block. Returns `None` if the
/// write must wait.
pub(super) fn write(
    process: &Process,
    file: &OpenFile,
    from: UserSlice,
    all: bool,
) -> Option<Result<usize, Error>> {
    let space = match process.space() {
        Ok(space) => space,
        Err(error) => return Some(Err(error)),
    };
    file.write(from.len(), all, |bytes| {
        space.read(from.part(0, bytes.len()), bytes)
    })
}

fn name(process: &Process, start: usize, len: usize) -> Result<Vec<u8>, Error> {
    let range = UserRange {
        start: start as u64,
        len: len as u64,
    };
    bytes(&*process.space()?, range, MAX_NAME)
}

pub(super) fn open(
    process: Arc<Process>,
    [start, len, flags, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let name = name(&process, start, len);
    CallStart::Pending(async move {
        let file = OpenFile::open(&name?, flags, process.share()).await?;
        let [descriptor] = process.add_files([File::Stored(file)])?;
        Ok(descriptor as isize)
    })
}

pub(super) fn fsync(
    process: Arc<Process>,
    [file, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let file = process.file(file).and_then(File::stored);
    CallStart::Pending(async move {
        file?;
        storage::sync().await?;
        Ok(0)
    })
}

pub(super) fn unlink(
    process: Arc<Process>,
    [start, len, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let name = name(&process, start, len);
    CallStart::Pending(async move {
        storage::unlink(&name?).await?;
        Ok(0)
    })
}

pub(super) fn list(
    process: Arc<Process>,
    [from, start, len, ..]: Arguments,
    inline: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let to = UserSlice::new(start, len).and_then(|to| {
        process.space()?.check(to, Access::Write)?;
        Ok(to)
    });
    let list_entry = move |process: &Process| {
        let (space, to) = (process.space()?, to?);
        let listed = storage::list(from, |next, size, name| {
            let size = size.to_le_bytes();
            let first = size.len().min(to.len());
            space.write(to.part(0, first), &size[..first])?;
            let fits = name.len().min(to.len() - first);
            space.write(to.part(first, fits), &name.as_bytes()[..fits])?;
            Ok((next | name.len() << 32) as isize)
        })?;
        Ok(listed.unwrap_or(0))
    };
    if inline {
        return CallStart::Done(list_entry(&process));
    }
    CallStart::Pending(async move { list_entry(&process) })
}

pub(super) fn seek(thread: &mut Thread, [file, position, ..]: Arguments) -> Answer {
    let file = thread.process.file(file)?.stored()?;
    Ok(file.seek(position)? as isize)
}
