//! The disk: requests that coroutines wait for.
//!
//! ```text
//!  Buffer::take ─► fill it ─► write(block) ──┐
//!             └─────────────► read(block) ───┴─► device ─► interrupt ─► Reaper ─► all waiters
//! ```
//!
//! The *reaper* takes finished requests back. It is as urgent as its most urgent waiter, and the
//! interrupt wakes it. A coroutine waits while no buffer is free, and while the device has its
//! request. The reaper wakes all waiters, and the scheduler lets the most urgent look first. A
//! request that is dropped leaves its buffer to the device until the device has finished it.

use core::future::poll_fn;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Poll;

use os_abi::Error;
use upshift_core::{CoroutineId, Level, Priority};

use crate::arch::lock::{IrqLock, Once};
use crate::devices::{self, BLOCK, Disk, Line, Memory, Request};
use crate::levels::{self, Levels};
use crate::machine::Machine;
use crate::waiters::{Awaited, Urgent, Waiters, until_urgent};
use crate::{executor, println};

/// The disk, behind its lock.
struct Requests {
    disk: Disk,
    waiters: Waiters,
    waiting: Levels,
    reaper: CoroutineId,
}

static DISK: Once<IrqLock<Requests>> = Once::new();
static LINE: Once<Line> = Once::new();
/// The reaper's coroutine, for the handler, which takes no lock.
static REAPER: AtomicU64 = AtomicU64::new(0);

impl Awaited for Requests {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Urgent for Requests {
    fn waits(&mut self, before: Option<Level>, now: Option<Level>) {
        self.waiting.change(before, now);
        levels::follow(self.reaper, self.waiting.bits());
    }
}

/// Finds the disk and starts the reaper, while booting.
pub(crate) fn init(machine: &Machine) {
    let Some((disk, line)) = devices::find_disk(machine, |_| interrupt()) else {
        return;
    };
    println!("upshift: disk of {} blocks", disk.blocks());
    LINE.set(line);
    let options = Priority::At(executor::LEAST_URGENT_WORK);
    let reaper = executor::spawn(reap(), options).expect("memory to boot");
    REAPER.store(reaper.id().to_u64(), Relaxed);
    DISK.set(IrqLock::new(Requests {
        disk,
        waiters: Waiters::new(),
        waiting: Levels::new(),
        reaper: reaper.id(),
    }));
    reaper.detach();
}

/// The handler of the disk's interrupt.
fn interrupt() {
    if let Some(line) = LINE.try_get() {
        line.acknowledge();
    }
    // The reaper never ends.
    let _ = executor::domain().wake(CoroutineId::from_u64(REAPER.load(Relaxed)));
}

/// The reaper.
async fn reap() {
    poll_fn(|_| {
        let mut requests = requests().lock();
        if requests.disk.reap() {
            let waiters = requests.waiters.take();
            drop(requests);
            waiters.wake();
        }
        Poll::Pending
    })
    .await
}

fn requests() -> &'static IrqLock<Requests> {
    DISK.get()
}

/// Returns the number of blocks of the disk, if there is one.
pub(crate) fn blocks() -> Option<u64> {
    Some(DISK.try_get()?.lock().disk.blocks())
}

/// A buffer of a block.
pub(crate) struct Buffer(Option<Memory>);

/// A request that the device has.
struct Asked(Option<usize>);

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            let mut requests = requests().lock();
            requests.disk.forget(number);
            let waiters = requests.waiters.take();
            drop(requests);
            waiters.wake();
        }
    }
}

impl Buffer {
    /// Waits for a free one.
    pub(crate) async fn take() -> Buffer {
        let memory = until_urgent(requests(), |requests| requests.disk.take()).await;
        Buffer(Some(memory))
    }

    /// Returns the bytes of the buffer.
    pub(crate) fn bytes(&mut self) -> Result<&mut [u8; BLOCK], Error> {
        self.0
            .as_mut()
            .and_then(Memory::block)
            .ok_or(Error::DiskFailed)
    }

    /// Asks the disk, and waits until it has answered.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    async fn ask(&mut self, request: Request) -> Result<(), Error> {
        let number = {
            let memory = self.0.take().ok_or(Error::DiskFailed)?;
            let begun = requests().lock().disk.begin(memory, request);
            begun.map_err(|memory| {
                self.0 = Some(memory);
                Error::DiskFailed
            })?
        };
        let mut asked = Asked(Some(number));
        let (memory, is_done) =
            until_urgent(requests(), |requests| requests.disk.take_done(number)).await;
        asked.0 = None;
        self.0 = Some(memory);
        if is_done {
            Ok(())
        } else {
            Err(Error::DiskFailed)
        }
    }

    /// Reads a block into it.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) async fn read(&mut self, block: u32) -> Result<(), Error> {
        self.ask(Request::Read(block)).await
    }

    /// Writes it to a block.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) async fn write(&mut self, block: u32) -> Result<(), Error> {
        self.ask(Request::Write(block)).await
    }

    /// Waits until earlier writes are durable.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        let can_flush = requests().lock().disk.can_flush();
        if can_flush {
            self.ask(Request::Flush).await
        } else {
            Ok(())
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            let mut requests = requests().lock();
            requests.disk.give_back(memory);
            let waiters = requests.waiters.take();
            drop(requests);
            waiters.wake();
        }
    }
}
