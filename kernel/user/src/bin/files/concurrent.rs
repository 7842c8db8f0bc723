//! Tests of files by asynchronous calls, from many coroutines and levels.

use alloc::format;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::Poll;

use os_user::calls::list;
use os_user::coroutine::{current, spawn, spawn_local};
use os_user::files::{
    self, CREATE, TRUNCATE, fsync, fsync_async, list_async, open, open_async, read_to_end, seek,
    unlink,
};
use os_user::testing::{Outcome, message};
use os_user::{Error, ensure, read, sys, write};

use crate::{close, fresh, pattern};

/// Size of a block of the disk in bytes.
const BLOCK: usize = 4096;

pub(crate) async fn both_forms_give_the_same_result() -> Outcome {
    let file = open!("both", CREATE | TRUNCATE, current()).await;
    let file = file.map_err(message)?;
    let bytes = pattern(5, 2 * BLOCK + 1);
    let (count, _) = write!(file, bytes.clone(), current()).await;
    ensure!(count == Ok(bytes.len()), "wrote {count:?}");
    let synced = [fsync!(file), fsync!(file, current()).await];
    ensure!(synced == [Ok(()); 2], "{synced:?}");
    let reopened = open!("both", 0).map_err(message)?;
    let mut contents = Vec::new();
    loop {
        let (count, part) = read!(reopened, vec![0; BLOCK], current()).await;
        match count.map_err(message)? {
            0 => break,
            count => contents.extend_from_slice(&part[..count]),
        }
    }
    ensure!(contents == bytes, "the file has other bytes");
    let mut entry = [0; 16];
    let blocking = list!(0, &mut entry);
    let (awaited, bytes) = list!(0, vec![0; 16], current()).await;
    ensure!(
        blocking == awaited && bytes == entry,
        "{blocking:?}, {awaited:?}"
    );
    let (mut files, mut from) = (Vec::new(), 0);
    while let Some((next, name, size)) = list_async(from, current()).await.map_err(message)? {
        files.push((name, size));
        from = next;
    }
    ensure!(files::list() == Ok(files), "the lists of files differ");
    let unlinked = unlink!("both", current()).await;
    ensure!(unlinked == Ok(()), "{unlinked:?}");
    fresh("both").map(close)?;
    ensure!(unlink!("both") == Ok(()), "the file exists again");
    let gone = [unlink!("both"), unlink!("both", current()).await];
    ensure!(gone == [Err(Error::NoFile); 2], "{gone:?}");
    let gone = [open!("both", 0), open!("both", 0, current()).await];
    ensure!(gone == [Err(Error::NoFile); 2], "{gone:?}");
    let socket = sys::socket().map_err(message)? as usize;
    let not_files = [fsync!(socket), fsync!(socket, current()).await];
    ensure!(not_files == [Err(Error::BadFile); 2], "{not_files:?}");
    for descriptor in [file, reopened, socket] {
        close(descriptor);
    }
    Ok(())
}

/// Coroutines of many levels write and sync a file each, all at the same time, and all finish.
pub(crate) async fn writers_of_all_levels_make_progress() -> Outcome {
    const WRITERS: usize = 12;
    let writer = |number: usize| async move {
        let name = format!("writer {number}");
        let file = open_async(&name, CREATE | TRUNCATE, current()).await;
        let file = file?;
        let bytes = pattern(number, 6 * BLOCK);
        for part in bytes.chunks(1_000) {
            let (count, _) = write!(file, part.to_vec(), current()).await;
            count?;
        }
        let synced = fsync_async(file, current()).await;
        synced?;
        close(file);
        Ok::<(), Error>(())
    };
    let mut tasks = Vec::new();
    for number in 0..WRITERS {
        let level = 10 + 4 * number as u8;
        tasks.push(spawn(writer(number), Some(level)).map_err(message)?);
    }
    for task in tasks {
        task.await
            .unwrap_or(Err(Error::Cancelled))
            .map_err(message)?;
    }
    for number in 0..WRITERS {
        let name = format!("writer {number}");
        let file = open(&name, 0).map_err(message)?;
        ensure!(
            read_to_end(file) == Ok(pattern(number, 6 * BLOCK)),
            "{name} has other bytes"
        );
        close(file);
        unlink(&name).map_err(message)?;
    }
    Ok(())
}

/// Creates a file whose first blocks are no longer in the cache.
fn create_uncached(name: &str, blocks: usize) -> Result<(), alloc::string::String> {
    for (name, blocks) in [(name, blocks), ("other", 70)] {
        let file = fresh(name)?;
        write(file, &pattern(1, blocks * BLOCK)).map_err(message)?;
        fsync(file).map_err(message)?;
        seek(file, 0).map_err(message)?;
        read_to_end(file).map_err(message)?;
        close(file);
    }
    unlink("other").map_err(message)
}

/// An urgent read overtakes all waiting reads except those that the disk is already serving.
pub(crate) async fn an_urgent_read_overtakes_others() -> Outcome {
    const BLOCKS: usize = 48;
    create_uncached("slow", BLOCKS)?;
    let done = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for block in 1..BLOCKS {
        let done = done.clone();
        let reader = async move {
            let file = open("slow", 0)?;
            seek(file, (block * BLOCK) as u64)?;
            let (count, _) = read!(file, vec![0; 16], current()).await;
            done.set(done.get() + 1);
            close(file);
            count
        };
        tasks.push(spawn_local(reader, Some(50)).map_err(message)?);
    }
    let before = done.clone();
    let urgent = async move {
        let file = open("slow", 0)?;
        let (count, _) = read!(file, vec![0; 16], current()).await;
        close(file);
        count.map(|_| before.get())
    };
    // Let the other reads start first.
    os_user::coroutine::yield_now().await;
    let urgent = spawn_local(urgent, Some(5)).map_err(message)?;
    let waited = urgent
        .await
        .unwrap_or(Err(Error::Cancelled))
        .map_err(message)?;
    for task in tasks {
        let count = task.await.unwrap_or(Err(Error::Cancelled));
        ensure!(count == Ok(16), "{count:?}");
    }
    // The disk serves at most eight requests at a time; three times as many reads are a margin.
    ensure!(waited <= 24, "{waited} less urgent reads came first");
    unlink("slow").map_err(message)
}

/// Drops reads in flight, many times more than there are buffers. The file can still be read
/// afterwards, with the right contents.
pub(crate) async fn a_dropped_read_leaves_nothing_behind() -> Outcome {
    create_uncached("dropped", 48)?;
    for round in 0..3 {
        let mut files = Vec::new();
        let mut reads = Vec::new();
        for block in 0..24 {
            let file = open("dropped", 0).map_err(message)?;
            seek(file, (block * BLOCK) as u64).map_err(message)?;
            reads.push(read!(file, vec![0; 64], current()));
            files.push(file);
        }
        // Poll each read once, so that a part of them begin.
        poll_fn(|cx| {
            for read in &mut reads {
                let _ = Pin::new(read).poll(cx);
            }
            Poll::Ready(())
        })
        .await;
        drop(reads);
        for file in files {
            close(file);
        }
        let file = open("dropped", 0).map_err(message)?;
        let bytes = read_to_end(file).map_err(message)?;
        ensure!(
            bytes == pattern(1, 48 * BLOCK),
            "round {round}: the file has other bytes"
        );
        close(file);
    }
    unlink("dropped").map_err(message)
}

/// Many coroutines sync at the same time, and all syncs succeed.
pub(crate) async fn syncs_share_a_commit() -> Outcome {
    let file = fresh("synced")?;
    write(file, b"x").map_err(message)?;
    let mut tasks = Vec::new();
    for number in 0..60u8 {
        let sync = async move { fsync_async(file, current()).await };
        tasks.push(spawn_local(sync, Some(number)).map_err(message)?);
    }
    for task in tasks {
        let synced = task.await.unwrap_or(Err(Error::Cancelled));
        ensure!(synced == Ok(()), "{synced:?}");
    }
    close(file);
    unlink("synced").map_err(message)
}
