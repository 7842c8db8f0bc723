//! The committer: a coroutine that writes changed blocks when a call waits until they are on the
//! disk.

use core::future::poll_fn;
use core::task::Poll;

use os_abi::Error;
use os_files::Step;

use super::{STORAGE, Storage, wait_until_committed};
use crate::disk::Buffer;

pub(super) async fn run() {
    loop {
        // A waiter wakes the committer.
        poll_fn(|_| STORAGE.lock().begin().map_or(Poll::Pending, Poll::Ready)).await;
        if commit().await.is_err()
            && let Some(volume) = &mut STORAGE.lock().volume
        {
            volume.fail();
        }
        let waiters = STORAGE.lock().waiters.take();
        waiters.wake();
    }
}

impl Storage {
    /// Begins a commit if a call waits for it.
    fn begin(&mut self) -> Option<()> {
        let is_wanted = self.waiting.bits() != 0;
        let volume = self.volume.as_mut().filter(|_| is_wanted)?;
        volume.begin_commit().then_some(())
    }
}

async fn commit() -> Result<(), Error> {
    let mut buffer = Buffer::take().await;
    loop {
        let step = {
            let mut storage = STORAGE.lock();
            let step = storage.volume()?.commit(buffer.bytes()?);
            step.map_err(super::abi_error)?
        };
        match step {
            Step::Write(block) => buffer.write(block).await?,
            Step::Flush => buffer.flush().await?,
            Step::Done => return Ok(()),
        }
    }
}

/// Waits until all changes are on the disk.
///
/// # Errors
/// [`Error::DiskFailed`].
pub(crate) async fn sync() -> Result<(), Error> {
    let version = STORAGE.lock().volume()?.version();
    wait_until_committed(version).await
}
