//! Lets coroutines read and write blocks of the disk.
//!
//! ```text
//!  Buffer::take ─► fill it ─► write(block) ──┐
//!             └─────────────► read(block) ───┴─► device ─► interrupt ─► Reaper ─► all waiters
//! ```
//!
//! The *reaper* reclaims finished requests. It is as urgent as its most urgent waiter, and the
//! interrupt wakes it. A coroutine waits while no buffer is free, and while the device has its
//! request. The reaper wakes all waiters, and the scheduler runs the most urgent first. A dropped
//! request leaves its buffer to the device until the device has finished it.

use core::future::poll_fn;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Poll;

use os_abi::Error;
use upshift_core::{CoroutineId, Level, Priority};

use crate::arch::lock::{IrqLock, Once};
use crate::devices::{self, BLOCK, Disk, InterruptAck, Request, RequestMemory};
use crate::levels::{self, WaiterLevels};
use crate::machine::Machine;
use crate::waiters::{Awaited, Urgent, Waiters, wait_until_urgent};
use crate::{executor, println};

struct Requests {
    disk: Disk,
    waiters: Waiters,
    waiting: WaiterLevels,
    reaper: CoroutineId,
}

static DISK: Once<IrqLock<Requests>> = Once::new();
static INTERRUPT_ACK: Once<InterruptAck> = Once::new();
/// Id of the reaper, for the handler, which takes no lock.
static REAPER: AtomicU64 = AtomicU64::new(0);

impl Awaited for Requests {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Urgent for Requests {
    fn move_waiter(&mut self, before: Option<Level>, now: Option<Level>) {
        self.waiting.move_waiter(before, now);
        levels::follow(self.reaper, self.waiting.bits());
    }
}

pub(crate) fn init(machine: &Machine) {
    let Some((disk, interrupt_ack)) = devices::find_disk(machine, |_| interrupt()) else {
        return;
    };
    println!("upshift: disk of {} blocks", disk.blocks());
    INTERRUPT_ACK.set(interrupt_ack);
    let options = Priority::At(executor::LEAST_URGENT_WORK);
    let reaper = executor::spawn(reap(), options).expect("memory to boot");
    REAPER.store(reaper.id().to_u64(), Relaxed);
    DISK.set(IrqLock::new(Requests {
        disk,
        waiters: Waiters::new(),
        waiting: WaiterLevels::new(),
        reaper: reaper.id(),
    }));
    reaper.detach();
}

fn interrupt() {
    if let Some(interrupt_ack) = INTERRUPT_ACK.try_get() {
        interrupt_ack.acknowledge();
    }
    // The reaper never ends.
    let _ = executor::domain().wake(CoroutineId::from_u64(REAPER.load(Relaxed)));
}

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

pub(crate) fn blocks() -> Option<u64> {
    Some(DISK.try_get()?.lock().disk.blocks())
}

/// A buffer for a block. It has no memory while its request is in the device.
pub(crate) struct Buffer(Option<RequestMemory>);

/// A request in the device, which is abandoned when the value is dropped.
struct PendingRequest(Option<usize>);

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            let mut requests = requests().lock();
            requests.disk.abandon(number);
            let waiters = requests.waiters.take();
            drop(requests);
            waiters.wake();
        }
    }
}

impl Buffer {
    pub(crate) async fn take() -> Buffer {
        let memory = wait_until_urgent(requests(), |requests| requests.disk.take()).await;
        Buffer(Some(memory))
    }

    pub(crate) fn bytes(&mut self) -> Result<&mut [u8; BLOCK], Error> {
        self.0
            .as_mut()
            .and_then(RequestMemory::block)
            .ok_or(Error::DiskFailed)
    }

    /// Submits a request, and waits until the disk has finished it.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    async fn submit(&mut self, request: Request) -> Result<(), Error> {
        let number = {
            let memory = self.0.take().ok_or(Error::DiskFailed)?;
            let submitted = requests().lock().disk.submit(memory, request);
            submitted.map_err(|memory| {
                self.0 = Some(memory);
                Error::DiskFailed
            })?
        };
        let mut pending = PendingRequest(Some(number));
        let (memory, has_succeeded) =
            wait_until_urgent(requests(), |requests| requests.disk.take_finished(number)).await;
        pending.0 = None;
        self.0 = Some(memory);
        if has_succeeded {
            Ok(())
        } else {
            Err(Error::DiskFailed)
        }
    }

    /// Reads a block into the buffer.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) async fn read(&mut self, block: u32) -> Result<(), Error> {
        self.submit(Request::Read(block)).await
    }

    /// Writes the buffer to a block.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) async fn write(&mut self, block: u32) -> Result<(), Error> {
        self.submit(Request::Write(block)).await
    }

    /// Waits until earlier writes are durable.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        let can_flush = requests().lock().disk.can_flush();
        if can_flush {
            self.submit(Request::Flush).await
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
