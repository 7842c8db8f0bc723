//! The calls that may take time: kernel coroutines, each a future of its result.
//!
//! They hold no lock across an `await` and touch user memory only at the end,
//! through the space the process has *then*: if it has ended, there is none.

use alloc::sync::Arc;

use super::Answer;
use crate::memory::pagetable::Access;
use crate::memory::space::UserSlice;
use crate::process::{self, Process};
use crate::sleep;

/// Bytes that a call moves at a time: they are in its control block.
const CHUNK: usize = 256;

type Arguments = [usize; 6];

pub(super) async fn read(process: Arc<Process>, arguments: Arguments) -> Answer {
    let [file, start, len, ..] = arguments;
    let slice = UserSlice::new(start, len)?;
    // Before anything is taken out of the file.
    process.space()?.check(slice, Access::Write)?;
    let file = process.file(file)?;
    let mut chunk = [0; CHUNK];
    let want = len.min(CHUNK);
    let count = file.read(&mut chunk[..want]).await?;
    drop(file);
    process
        .space()?
        .write(slice.part(0, count), &chunk[..count])?;
    Ok(count as isize)
}

pub(super) async fn write(process: Arc<Process>, arguments: Arguments) -> Answer {
    let [file, start, len, ..] = arguments;
    let slice = UserSlice::new(start, len)?;
    process.space()?.check(slice, Access::Read)?;
    let file = process.file(file)?;
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < len {
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
    process::wait(process.number, child).await
}
