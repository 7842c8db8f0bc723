//! The calls that may take time: kernel coroutines, each a future of its result.
//!
//! Each tries first whether it need wait at all, if it is told that it may.
//!
//! They hold no lock across an `await` and touch user memory only at the end,
//! through the space the process has *then*: if it has ended, there is none.

use alloc::sync::Arc;

use os_abi::Error;

use super::Answer;
use crate::clock;
use crate::memory::pagetable::Access;
use crate::memory::space::UserSlice;
use crate::process::{self, File, Process};
use crate::{futex, sleep};

/// Bytes that a call moves at a time: they are in its control block.
const CHUNK: usize = 256;

type Arguments = [usize; 6];

/// How a call begins.
pub(super) enum Begin<F> {
    /// It is over.
    Done(Answer),
    /// It waits for something.
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
    if at_once {
        let mut chunk = [0; CHUNK];
        let want = slice.len().min(CHUNK);
        if let Some(result) = file.try_read(&mut chunk[..want]) {
            return Begin::Done(result.and_then(|count| deliver(&process, slice, &chunk[..count])));
        }
    }
    Begin::Waits(read_file(process, file, slice))
}

async fn read_file(process: Arc<Process>, file: File, slice: UserSlice) -> Answer {
    let mut chunk = [0; CHUNK];
    let want = slice.len().min(CHUNK);
    let count = file.read(&mut chunk[..want]).await?;
    drop(file);
    deliver(&process, slice, &chunk[..count])
}

/// Gives the program what was read.
fn deliver(process: &Process, slice: UserSlice, bytes: &[u8]) -> Answer {
    process.space()?.write(slice.part(0, bytes.len()), bytes)?;
    Ok(bytes.len() as isize)
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
        && slice.len() <= CHUNK
        && let Some(answer) = write_now(&process, &file, slice).transpose()
    {
        return Begin::Done(answer);
    }
    Begin::Waits(write_file(process, file, slice))
}

/// Writes all of it, at most [`CHUNK`], if there is room.
fn write_now(process: &Process, file: &File, slice: UserSlice) -> Result<Option<isize>, Error> {
    let mut chunk = [0; CHUNK];
    let chunk = &mut chunk[..slice.len()];
    process.space()?.read(slice, chunk)?;
    let written = file.try_write(chunk).transpose()?;
    Ok(written.map(|count| count as isize))
}

async fn write_file(process: Arc<Process>, file: File, slice: UserSlice) -> Answer {
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < slice.len() {
        let part = slice.part(done, CHUNK);
        process.space()?.read(part, &mut chunk[..part.len()])?;
        let mut sent = 0;
        while sent < part.len() {
            match file.write(&chunk[sent..part.len()]).await {
                Ok(count) => sent += count,
                // What was written before the error is the answer.
                Err(_) if done + sent > 0 => return Ok((done + sent) as isize),
                Err(error) => return Err(error),
            }
        }
        done += sent;
    }
    Ok(done as isize)
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
