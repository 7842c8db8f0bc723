//! System calls that may take time. Each is a future of its result, which a kernel coroutine polls.
//!
//! If `inline` is set, a call first tries to finish without waiting, so that it needs no coroutine.
//! Calls hold no lock across an `await`, and access user memory only at the end, through the space
//! that the process has *then*; an ended process has none.

use alloc::sync::Arc;
use core::ops::Range;

use os_abi::Error;

use super::{Answer, sockets, storage};
use crate::memory::PAGE;
use crate::memory::pagetable::{Access, Mapping};
use crate::memory::user::UserSlice;
use crate::process::{self, File, Process};
use crate::{chaos, clock, executor, futex, sleep};

pub(super) use super::sockets::{accept, connect, receive_from, send_to};
pub(super) use super::spawn::spawn;
pub(super) use super::storage::{fsync, list, open, unlink};

/// Number of bytes that a call transfers at a time. They are on the stack of the hart, never in the
/// control block of the call, so the block is small and cheap to move.
const CHUNK: usize = 256;

/// Number of pages that are mapped between two yields.
const PAGES_AT_ONCE: usize = 32;

type Arguments = [usize; 6];

/// State of a call after its first attempt.
pub(super) enum CallStart<F> {
    Done(Answer),
    Pending(F),
}

/// Returns the file and the memory of a transfer. The descriptor is resolved when the call is made,
/// and the memory is checked before bytes are read from the file.
fn transfer(
    process: &Process,
    [file, start, len, ..]: Arguments,
    access: Access,
) -> Result<(File, UserSlice), Error> {
    let file = process.file(file)?;
    let slice = UserSlice::new(start, len)?;
    process.space()?.check(slice, access)?;
    Ok((file, slice))
}

pub(super) fn read(
    process: Arc<Process>,
    arguments: Arguments,
    inline: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let (file, slice) = match transfer(&process, arguments, Access::Write) {
        Ok(target) => target,
        Err(error) => return CallStart::Done(Err(error)),
    };
    if inline && let Some(answer) = try_read(&process, &file, slice) {
        return CallStart::Done(answer);
    }
    CallStart::Pending(async move {
        loop {
            if let Some(answer) = try_read(&process, &file, slice) {
                return answer;
            }
            file.readable().await?;
        }
    })
}

/// Reads the available bytes, at most [`CHUNK`], and passes them to the program. Returns `None` if
/// there are none.
fn try_read(process: &Process, file: &File, slice: UserSlice) -> Option<Answer> {
    match file {
        File::Socket(socket) => return sockets::read(process, socket, slice),
        File::Stored(file) => return storage::read(process, file, slice),
        _ => {}
    }
    let mut chunk = [0; CHUNK];
    let wanted = slice.len().min(CHUNK);
    let count = match file.try_read(&mut chunk[..wanted])? {
        Ok(count) => count,
        Err(error) => return Some(Err(error)),
    };
    let to = slice.part(0, count);
    let written = process
        .space()
        .and_then(|space| space.write(to, &chunk[..count]));
    Some(written.map(|()| count as isize))
}

pub(super) fn write(
    process: Arc<Process>,
    arguments: Arguments,
    inline: bool,
) -> CallStart<impl Future<Output = Answer>> {
    let (file, slice) = match transfer(&process, arguments, Access::Read) {
        Ok(target) => target,
        Err(error) => return CallStart::Done(Err(error)),
    };
    if inline
        && slice.len() <= max_chunk(&file)
        && let Some(answer) = try_write(&process, &file, slice).transpose()
    {
        return CallStart::Done(answer);
    }
    CallStart::Pending(write_file(process, file, slice))
}

/// Returns the maximum number of bytes of a transfer. It is larger for sockets and files of the
/// disk, because they are written in place.
fn max_chunk(file: &File) -> usize {
    match file {
        File::Socket(_) | File::Stored(_) => PAGE,
        _ => CHUNK,
    }
}

/// Writes all bytes, at most [`max_chunk`], if there is space.
fn try_write(process: &Process, file: &File, slice: UserSlice) -> Result<Option<isize>, Error> {
    let in_place = match file {
        File::Socket(socket) => Some(sockets::write(process, socket, slice, true)),
        File::Stored(file) => Some(storage::write(process, file, slice, true)),
        _ => None,
    };
    if let Some(written) = in_place {
        return Ok(written.transpose()?.map(|count| count as isize));
    }
    let mut chunk = [0; CHUNK];
    let chunk = &mut chunk[..slice.len()];
    process.space()?.read(slice, chunk)?;
    let written = file.try_write(chunk).transpose()?;
    Ok(written.map(|count| count as isize))
}

async fn write_file(process: Arc<Process>, file: File, slice: UserSlice) -> Answer {
    let mut done = 0;
    while done < slice.len() {
        match write_part(&process, &file, slice.part(done, max_chunk(&file))) {
            Some(Ok(count)) => {
                done += count;
                if done < slice.len() {
                    // Other coroutines run first, even if there is more space.
                    executor::yield_now().await;
                }
            }
            // The answer is the number of bytes that were written before the error.
            Some(Err(_)) if done > 0 => return Ok(done as isize),
            Some(Err(error)) => return Err(error),
            None => match file.writable().await {
                Ok(()) => {}
                Err(_) if done > 0 => return Ok(done as isize),
                Err(error) => return Err(error),
            },
        }
    }
    Ok(done as isize)
}

/// Writes as many bytes of a part as fit, at most [`max_chunk`]. Returns `None` if none fit.
fn write_part(process: &Process, file: &File, part: UserSlice) -> Option<Result<usize, Error>> {
    match file {
        File::Socket(socket) => return sockets::write(process, socket, part, false),
        File::Stored(file) => return storage::write(process, file, part, false),
        _ => {}
    }
    let mut chunk = [0; CHUNK];
    let chunk = &mut chunk[..part.len()];
    let read = process.space().and_then(|space| space.read(part, chunk));
    match read {
        Ok(()) => file.put(chunk),
        Err(error) => Some(Err(error)),
    }
}

pub(super) fn map(
    process: Arc<Process>,
    [pages, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    map_above(process, 0, pages)
}

pub(super) fn map_stack(
    process: Arc<Process>,
    [pages, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    map_above(process, PAGE, pages)
}

/// Maps a few pages inline, even while other coroutines wait; maps more pages in parts, with yields
/// in between.
fn map_above(
    process: Arc<Process>,
    hole: usize,
    pages: usize,
) -> CallStart<impl Future<Output = Answer>> {
    let range = pages
        .checked_mul(PAGE)
        .filter(|_| !chaos::is_out_of_memory(32))
        .and_then(|len| process.reserve_addresses(hole, len));
    let Some(range) = range else {
        return CallStart::Done(Err(Error::OutOfMemory));
    };
    if pages <= PAGES_AT_ONCE {
        let mapped = map_pages(&process, range.clone(), range.end);
        return CallStart::Done(mapped.map(|()| range.start as isize));
    }
    CallStart::Pending(async move {
        for start in range.clone().step_by(PAGES_AT_ONCE * PAGE) {
            let part = start..range.end.min(start + PAGES_AT_ONCE * PAGE);
            map_pages(&process, part, range.end)?;
            executor::yield_now().await;
        }
        Ok(range.start as isize)
    })
}

/// Maps zeroed pages. After a failure, pages that were mapped stay mapped and unused; the addresses
/// from the failed page to `end` are released.
fn map_pages(process: &Process, pages: Range<usize>, end: usize) -> Result<(), Error> {
    let space = process.space()?;
    for page in pages.step_by(PAGE) {
        if space.map_page(page, &[], Mapping::USER_DATA).is_err() {
            process.release_addresses(page..end);
            return Err(Error::OutOfMemory);
        }
    }
    Ok(())
}

pub(super) fn sleep_until(
    _: Arc<Process>,
    [deadline, ..]: Arguments,
    inline: bool,
) -> CallStart<impl Future<Output = Answer>> {
    if inline && clock::now() >= deadline as u64 {
        return CallStart::Done(Ok(0));
    }
    CallStart::Pending(async move {
        sleep::sleep_until(deadline as u64).await;
        Ok(0)
    })
}

pub(super) fn wait(
    process: Arc<Process>,
    [child, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    CallStart::Pending(async move { process::wait(process.number(), child).await })
}

pub(super) fn thread_join(
    process: Arc<Process>,
    [thread, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    CallStart::Pending(async move { process.join(thread).await })
}

pub(super) fn futex_wait(
    process: Arc<Process>,
    [address, value, deadline, ..]: Arguments,
    _: bool,
) -> CallStart<impl Future<Output = Answer>> {
    CallStart::Pending(futex::wait(process, address, value as u32, deadline as u64))
}
