//! Files on the disk. Kernel coroutines run the file system, which is the crate `os-files`.
//!
//! ```text
//!  call ── lock ─► Volume: done, or ─► a block is missing: read it, supply it, try again
//!                                  └─► wait for a commit ◄── Committer: each step under the lock,
//!                                                             each transfer without it
//! ```
//!
//! All files share one lock, which is never held while the disk works. The *committer* writes
//! changed blocks when a call waits until they are on the disk, and is as urgent as the most urgent
//! waiter. A commit contains the changes up to one version, so after a power cut the disk is in the
//! state of a version at or after the last `fsync`, with all changes until then and no others.
//!
//! The disk is mounted when the first program starts, and unmounted when this program has ended.
//! All changes are then on the disk, and the memory of the volume is freed.

mod commit;
mod file;
mod mount;
mod program;

use os_abi::Error;
use os_files::Volume;
use upshift_core::{CoroutineId, Level};

use crate::arch::lock::IrqLock;
use crate::levels::{self, WaiterLevels};
use crate::waiters::{Awaited, Urgent, Waiters, wait_until_urgent};
use crate::{disk, executor};
pub(crate) use commit::sync;
pub(crate) use file::OpenFile;
pub(crate) use mount::{init, mount, unmount};
pub(crate) use program::load;

struct Storage {
    volume: Option<Volume>,
    waiters: Waiters,
    waiting: WaiterLevels,
    committer: Option<CoroutineId>,
}

static STORAGE: IrqLock<Storage> = IrqLock::new(Storage {
    volume: None,
    waiters: Waiters::new(),
    waiting: WaiterLevels::new(),
    committer: None,
});

impl Awaited for Storage {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Urgent for Storage {
    fn move_waiter(&mut self, before: Option<Level>, now: Option<Level>) {
        self.waiting.move_waiter(before, now);
        if let Some(committer) = self.committer {
            levels::follow(committer, self.waiting.bits());
            // The committer never ends.
            let _ = executor::domain().wake(committer);
        }
    }
}

impl Storage {
    fn volume(&mut self) -> Result<&mut Volume, Error> {
        self.volume.as_mut().ok_or(Error::DiskFailed)
    }
}

fn abi_error(error: os_files::Error) -> Error {
    match error {
        os_files::Error::NoFile => Error::NoFile,
        os_files::Error::BadName | os_files::Error::BadOffset => Error::BadArgument,
        os_files::Error::NotDirectory => Error::NotDirectory,
        os_files::Error::IsDirectory => Error::IsDirectory,
        os_files::Error::NoSpace => Error::NoSpace,
        os_files::Error::OutOfMemory => Error::OutOfMemory,
        os_files::Error::Damaged | os_files::Error::Blank | os_files::Error::Failed => {
            Error::DiskFailed
        }
    }
}

/// Changes the volume. While `attempt` returns `None`, waits for a commit and repeats the change.
async fn retry_after_commits<R>(
    mut attempt: impl FnMut(&mut Volume) -> Result<Option<R>, os_files::Error>,
) -> Result<R, Error> {
    loop {
        let version = {
            let mut storage = STORAGE.lock();
            let volume = storage.volume()?;
            if let Some(done) = attempt(volume).map_err(abi_error)? {
                return Ok(done);
            }
            volume.version()
        };
        wait_until_committed(version).await?;
    }
}

/// Waits until all changes before a version are on the disk.
async fn wait_until_committed(version: u64) -> Result<(), Error> {
    wait_until_urgent(&STORAGE, |storage| match storage.volume() {
        Ok(volume) => match volume.is_durable(version) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(abi_error(error))),
        },
        Err(error) => Some(Err(error)),
    })
    .await
}

/// Reads a block that the volume lacks, and passes it to the volume.
async fn fetch(fetch: os_files::Fetch) -> Result<(), Error> {
    let mut buffer = disk::Buffer::take().await;
    let read = buffer.read(fetch.block()).await;
    let mut storage = STORAGE.lock();
    // If the file has changed meanwhile, the block may belong to another file; the volume checks
    // this.
    read?;
    storage
        .volume()?
        .supply(fetch, buffer.bytes()?)
        .map_err(abi_error)
}

/// Removes the name of a file.
///
/// # Errors
/// [`Error::NoFile`], [`Error::BadArgument`], [`Error::IsDirectory`], [`Error::DiskFailed`].
pub(crate) async fn unlink(name: &[u8]) -> Result<(), Error> {
    retry_after_commits(|volume| Ok(volume.unlink(name)?.then_some(()))).await
}

/// Calls `give` with the first file whose number is not below `from`: its number plus 1, its
/// length, its name.
pub(crate) fn list<R>(
    from: usize,
    give: impl FnOnce(usize, u64, &str) -> Result<R, Error>,
) -> Result<Option<R>, Error> {
    let mut storage = STORAGE.lock();
    let listed = storage.volume()?.list(from);
    listed
        .map(|file| give(file.next, file.size, file.name))
        .transpose()
}
