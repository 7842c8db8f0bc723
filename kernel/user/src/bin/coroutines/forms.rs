//! Tests that the blocking and the asynchronous form of a call give the same result for the same
//! arguments, for the calls that need neither a socket nor a disk.

use alloc::vec;
use core::sync::atomic::AtomicU32;

use os_user::calls::{futex_wait, map, map_stack, sleep_until, spawn, thread_join};
use os_user::coroutine::current;
use os_user::number::{CHANGED, TIMED_OUT};
use os_user::testing::{Outcome, message};
use os_user::{
    Bounds, Error, ensure, layout, now, read, sys, thread, ticks_per_second, wait, write,
};

use crate::{close, new_pipe};

pub(crate) async fn both_forms_of_read_and_write() -> Outcome {
    let pipe = new_pipe()?;
    ensure!(write!(pipe.writer, b"one") == Ok(3), "no blocking write");
    let (count, bytes) = read!(pipe.reader, vec![0; 8], current()).await;
    ensure!(count == Ok(3) && bytes == b"one\0\0\0\0\0", "{count:?}");
    let (count, bytes) = write!(pipe.writer, b"two".to_vec(), current()).await;
    ensure!(count == Ok(3) && bytes == b"two", "{count:?}");
    let mut bytes = [0; 8];
    ensure!(read!(pipe.reader, &mut bytes) == Ok(3), "no blocking read");
    ensure!(bytes.starts_with(b"two"), "{bytes:?}");
    sys::close(pipe.reader).map_err(message)?;
    let blocking = write!(pipe.writer, b"late");
    ensure!(blocking == Err(Error::BrokenPipe), "{blocking:?}");
    let (awaited, bytes) = write!(pipe.writer, vec![7], current()).await;
    ensure!(
        awaited == Err(Error::BrokenPipe) && bytes == [7],
        "{awaited:?}"
    );
    sys::close(pipe.writer).map_err(message)?;
    Ok(())
}

pub(crate) async fn both_forms_of_sleep_until() -> Outcome {
    let deadline = now() + ticks_per_second() / 1_000;
    sleep_until!(deadline).map_err(message)?;
    ensure!(now() >= deadline, "the blocking sleep ended early");
    let deadline = now() + ticks_per_second() / 1_000;
    sleep_until!(deadline, current()).await.map_err(message)?;
    ensure!(now() >= deadline, "the awaited sleep ended early");
    Ok(())
}

/// Makes an asynchronous call, and repeats it while fault injection (`kernel/src/chaos.rs`) makes
/// it fail for lack of memory. `sys` repeats the blocking calls.
async fn repeat_without_memory<F>(call: impl Fn() -> F) -> F::Output
where
    F: Future<Output = Result<usize, Error>>,
{
    let mut result = call().await;
    for _ in 0..32 {
        if result != Err(Error::OutOfMemory) || !sys::has_chaos() {
            break;
        }
        result = call().await;
    }
    result
}

/// Each call must return pages that no other call has returned.
pub(crate) async fn both_forms_of_map() -> Outcome {
    let mut starts = [
        map!(2),
        repeat_without_memory(|| map!(2, current())).await,
        map_stack!(2),
        repeat_without_memory(|| map_stack!(2, current())).await,
    ];
    starts.sort_by_key(|start| start.unwrap_or(0));
    let mut end = 0;
    for start in starts {
        let start = start.map_err(message)?;
        ensure!(
            start >= end && start % layout::PAGE == 0,
            "{start:#x} below {end:#x}"
        );
        end = start + 2 * layout::PAGE;
    }
    let blocking = map!(usize::MAX);
    ensure!(blocking == Err(Error::OutOfMemory), "{blocking:?}");
    let awaited = map!(usize::MAX, current()).await;
    ensure!(awaited == Err(Error::OutOfMemory), "{awaited:?}");
    Ok(())
}

/// The child must receive the argument and the descriptors.
pub(crate) async fn both_forms_of_spawn_and_wait() -> Outcome {
    let pipe = new_pipe()?;
    let bounds = Bounds {
        level: 40,
        ceiling: 40,
        halvings: 1,
    };
    let files = [pipe.reader, pipe.writer];
    let first = spawn!("child", b"note first", &files, bounds).map_err(message)?;
    let status = wait!(first, current()).await;
    ensure!(status == Ok(0), "the first child ended with {status:?}");
    let second = || spawn!("child", b"note later", &files, bounds, current());
    let second = repeat_without_memory(second).await;
    let status = wait!(second.map_err(message)?);
    ensure!(status == Ok(0), "the second child ended with {status:?}");
    let mut notes = [0; 32];
    let count = read!(pipe.reader, &mut notes).map_err(message)?;
    ensure!(&notes[..count] == b"firstlater", "{:?}", &notes[..count]);

    let blocking = spawn!("nowhere", b"", &[], bounds);
    let awaited = spawn!("nowhere", b"", &[], bounds, current()).await;
    ensure!(
        blocking == awaited && awaited.is_err(),
        "{blocking:?}, {awaited:?}"
    );
    let blocking = wait!(first);
    ensure!(blocking == Err(Error::NoProcess), "{blocking:?}");
    let awaited = wait!(first, current()).await;
    ensure!(awaited == Err(Error::NoProcess), "{awaited:?}");
    close(pipe)
}

/// The number of a joined thread must be invalid.
pub(crate) async fn both_forms_of_thread_join() -> Outcome {
    for is_awaited in [false, true] {
        let handle = thread::spawn(|| {}).map_err(message)?;
        let number = handle.number();
        let joined = if is_awaited {
            thread_join!(number, current()).await
        } else {
            thread_join!(number)
        };
        ensure!(joined == Ok(0), "{joined:?}");
        let blocking = thread_join!(number);
        ensure!(blocking == Err(Error::NoThread), "{blocking:?}");
        let awaited = thread_join!(number, current()).await;
        ensure!(awaited == Err(Error::NoThread), "{awaited:?}");
        let joined_again = handle.join();
        ensure!(joined_again == Err(Error::NoThread), "{joined_again:?}");
    }
    Ok(())
}

pub(crate) async fn both_forms_of_futex_wait() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(5);
    let blocking = futex_wait!(&WORD, 4, u64::MAX);
    ensure!(blocking == Ok(CHANGED), "{blocking:?}");
    let awaited = futex_wait!(&WORD, 4, u64::MAX, current()).await;
    ensure!(awaited == Ok(CHANGED), "{awaited:?}");
    let soon = || now() + ticks_per_second() / 1_000;
    let blocking = futex_wait!(&WORD, 5, soon());
    ensure!(blocking == Ok(TIMED_OUT), "{blocking:?}");
    let awaited = futex_wait!(&WORD, 5, soon(), current()).await;
    ensure!(awaited == Ok(TIMED_OUT), "{awaited:?}");
    Ok(())
}
