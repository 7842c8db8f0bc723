//! The calls that may take time: kernel coroutines, each a future of its result.
//!
//! They hold no lock across an `await` and touch user memory only at the end,
//! through the space the process has *then*: if it has ended, there is none.

use alloc::sync::Arc;

use super::Answer;
use crate::memory::pagetable::Access;
use crate::memory::space::UserSlice;
use crate::process::{self, File, Process};
use crate::{futex, sleep};

/// Bytes that a call moves at a time: they are in its control block.
const CHUNK: usize = 256;

type Arguments = [usize; 6];

/// The file is the one that the descriptor names when the call is made.
pub(super) fn read(
    process: Arc<Process>,
    [file, start, len, ..]: Arguments,
) -> impl Future<Output = Answer> {
    let file = process.file(file);
    async move { read_file(process, file?, UserSlice::new(start, len)?).await }
}

async fn read_file(process: Arc<Process>, file: File, slice: UserSlice) -> Answer {
    // Before anything is taken out of the file.
    process.space()?.check(slice, Access::Write)?;
    let mut chunk = [0; CHUNK];
    let want = slice.len().min(CHUNK);
    let count = file.read(&mut chunk[..want]).await?;
    drop(file);
    process
        .space()?
        .write(slice.part(0, count), &chunk[..count])?;
    Ok(count as isize)
}

/// The file is the one that the descriptor names when the call is made.
pub(super) fn write(
    process: Arc<Process>,
    [file, start, len, ..]: Arguments,
) -> impl Future<Output = Answer> {
    let file = process.file(file);
    async move { write_file(process, file?, UserSlice::new(start, len)?).await }
}

async fn write_file(process: Arc<Process>, file: File, slice: UserSlice) -> Answer {
    process.space()?.check(slice, Access::Read)?;
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

pub(super) async fn sleep_until(process: Arc<Process>, [deadline, ..]: Arguments) -> Answer {
    // Nothing of the process is needed meanwhile.
    drop(process);
    sleep::sleep_until(deadline as u64).await;
    Ok(0)
}

pub(super) async fn wait(process: Arc<Process>, [child, ..]: Arguments) -> Answer {
    process::wait(process.number(), child).await
}

pub(super) async fn thread_join(process: Arc<Process>, [thread, ..]: Arguments) -> Answer {
    process.join(thread).await
}

pub(super) async fn futex_wait(
    process: Arc<Process>,
    [address, value, deadline, ..]: Arguments,
) -> Answer {
    futex::wait(process, address, value as u32, deadline as u64).await
}
