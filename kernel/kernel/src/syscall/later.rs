//! The calls that may take time: kernel coroutines, each a future of its result.
//!
//! Each tries first whether it need wait at all, if it is told that it may.
//!
//! They hold no lock across an `await` and touch user memory only at the end,
//! through the space the process has *then*: if it has ended, there is none.

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

/// Bytes that a call moves at a time. They are on the stack of the hart, never in the control block
/// of the call: so the block is small, and cheap to move to its place.
const CHUNK: usize = 256;

/// Pages that are mapped before others have their turn.
const PAGES_AT_ONCE: usize = 32;

type Arguments = [usize; 6];

/// State of a call after its first look.
pub(super) enum Begin<F> {
    /// The call is over.
    Done(Answer),
    /// The call waits.
    Waits(F),
}

/// A transfer between a file and memory: the file is the one that the descriptor
/// names when the call is made, and the memory is checked before anything is taken
/// out of the file.
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
    at_once: bool,
) -> Begin<impl Future<Output = Answer>> {
    let (file, slice) = match transfer(&process, arguments, Access::Write) {
        Ok(both) => both,
        Err(error) => return Begin::Done(Err(error)),
    };
    if at_once && let Some(answer) = read_now(&process, &file, slice) {
        return Begin::Done(answer);
    }
    Begin::Waits(async move {
        loop {
            if let Some(answer) = read_now(&process, &file, slice) {
                return answer;
            }
            file.readable().await?;
        }
    })
}

/// Reads the bytes that are there, at most [`CHUNK`], and gives them to the program. `None`:
/// nothing.
fn read_now(process: &Process, file: &File, slice: UserSlice) -> Option<Answer> {
    match file {
        File::Socket(socket) => return sockets::read(process, socket, slice),
        File::Stored(file) => return storage::read(process, file, slice),
        _ => {}
    }
    let mut chunk = [0; CHUNK];
    let want = slice.len().min(CHUNK);
    let count = match file.try_read(&mut chunk[..want])? {
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
    at_once: bool,
) -> Begin<impl Future<Output = Answer>> {
    let (file, slice) = match transfer(&process, arguments, Access::Read) {
        Ok(both) => both,
        Err(error) => return Begin::Done(Err(error)),
    };
    if at_once
        && slice.len() <= most_at_once(&file)
        && let Some(answer) = write_now(&process, &file, slice).transpose()
    {
        return Begin::Done(answer);
    }
    Begin::Waits(write_file(process, file, slice))
}

/// Bytes that are moved at a time: sockets and files of the disk are written to in place.
fn most_at_once(file: &File) -> usize {
    match file {
        File::Socket(_) | File::Stored(_) => PAGE,
        _ => CHUNK,
    }
}

/// Writes all the bytes, at most [`most_at_once`], if there is room.
fn write_now(process: &Process, file: &File, slice: UserSlice) -> Result<Option<isize>, Error> {
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
        match write_part(&process, &file, slice.part(done, most_at_once(&file))) {
            Some(Ok(count)) => {
                done += count;
                if done < slice.len() {
                    // However much there is room for, others have their turn.
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

/// Writes the bytes that fit of a part of at most [`most_at_once`]. `None`: nothing fits.
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
) -> Begin<impl Future<Output = Answer>> {
    map_above(process, 0, pages)
}

pub(super) fn map_stack(
    process: Arc<Process>,
    [pages, ..]: Arguments,
    _: bool,
) -> Begin<impl Future<Output = Answer>> {
    map_above(process, PAGE, pages)
}

/// Maps a few pages at once, even while others wait; more pages in parts, between which others run.
fn map_above(
    process: Arc<Process>,
    hole: usize,
    pages: usize,
) -> Begin<impl Future<Output = Answer>> {
    let range = pages
        .checked_mul(PAGE)
        .filter(|_| !chaos::is_out_of_memory(32))
        .and_then(|len| process.take_addresses(hole, len));
    let Some(range) = range else {
        return Begin::Done(Err(Error::OutOfMemory));
    };
    if pages <= PAGES_AT_ONCE {
        let mapped = map_pages(&process, range.clone(), range.end);
        return Begin::Done(mapped.map(|()| range.start as isize));
    }
    Begin::Waits(async move {
        for start in range.clone().step_by(PAGES_AT_ONCE * PAGE) {
            let part = start..range.end.min(start + PAGES_AT_ONCE * PAGE);
            map_pages(&process, part, range.end)?;
            executor::yield_now().await;
        }
        Ok(range.start as isize)
    })
}

/// Maps pages of zeroes. On failure the pages mapped so far stay, out of use; the addresses from
/// there to `end` are given back.
fn map_pages(process: &Process, pages: Range<usize>, end: usize) -> Result<(), Error> {
    let space = process.space()?;
    for page in pages.step_by(PAGE) {
        if space.map_page(page, &[], Mapping::USER_DATA).is_err() {
            process.give_addresses_back(page..end);
            return Err(Error::OutOfMemory);
        }
    }
    Ok(())
}

pub(super) fn sleep_until(
    _: Arc<Process>,
    [deadline, ..]: Arguments,
    at_once: bool,
) -> Begin<impl Future<Output = Answer>> {
    if at_once && clock::now() >= deadline as u64 {
        return Begin::Done(Ok(0));
    }
    Begin::Waits(async move {
        sleep::sleep_until(deadline as u64).await;
        Ok(0)
    })
}

pub(super) fn wait(
    process: Arc<Process>,
    [child, ..]: Arguments,
    _: bool,
) -> Begin<impl Future<Output = Answer>> {
    Begin::Waits(async move { process::wait(process.number(), child).await })
}

pub(super) fn thread_join(
    process: Arc<Process>,
    [thread, ..]: Arguments,
    _: bool,
) -> Begin<impl Future<Output = Answer>> {
    Begin::Waits(async move { process.join(thread).await })
}

pub(super) fn futex_wait(
    process: Arc<Process>,
    [address, value, deadline, ..]: Arguments,
    _: bool,
) -> Begin<impl Future<Output = Answer>> {
    Begin::Waits(futex::wait(process, address, value as u32, deadline as u64))
}
